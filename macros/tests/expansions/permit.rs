//! A permit, or nothing.

#[locked("licences", permits = 3, busy = skip)]
async fn convert(locks: &Client) -> Result<Option<()>, Error> {
    work().await.map(Some)
}

// Becomes:

async fn convert(locks: &Client) -> Result<Option<()>, Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<Option<()>, Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(locks)
        .semaphore("licences")
        .permits(3);
    let __lockset_guard = match __lockset_lock.try_acquire().await {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => return ::lockset::__private::skipped(),
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<Option<()>, Error>>()
            {
                return __lockset_never;
            }
            work().await.map(Some)
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
