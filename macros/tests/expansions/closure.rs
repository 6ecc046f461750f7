//! The error is made from who is in the way.

#[locked(write "config", try, busy = |busy| Refusal::Held(busy.remaining))]
async fn store(locks: Client, config: Config) -> Result<(), Refusal> {
    config.store().await
}

// Becomes:

async fn store(locks: Client, config: Config) -> Result<(), Refusal> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<(), Refusal>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(&locks)
        .rw_lock("config")
        .write_side();
    let __lockset_guard = match __lockset_lock.try_lock().await {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => {
            return ::lockset::__private::busy_with::<Result<(), Refusal>, _>(&__lockset_lock, |busy| {
                Refusal::Held(busy.remaining)
            })
            .await;
        }
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<(), Refusal>>()
            {
                return __lockset_never;
            }
            config.store().await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
