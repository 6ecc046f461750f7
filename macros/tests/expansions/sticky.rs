//! A lock that stays with its client for a moment.

#[locked("counter", sticky = "20ms")]
async fn next(locks: &Client, counter: &Counter) -> Result<u64, Error> {
    counter.next().await
}

// Becomes:

async fn next(locks: &Client, counter: &Counter) -> Result<u64, Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<u64, Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(locks)
        .lock("counter")
        .sticky(::lockset::__private::millis(20u64));
    let __lockset_guard = match __lockset_lock.lock().await {
        ::core::result::Result::Ok(__lockset_guard) => __lockset_guard,
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<u64, Error>>()
            {
                return __lockset_never;
            }
            counter.next().await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
