//! Permits of a semaphore, first come, first served; the number is computed.

#[locked("licences:{product}", fair, permits = LICENCES, wait = "5s", lease = "10s", guard = g)]
async fn convert(locks: &Client, product: &str) -> Result<(), Error> {
    work(g.remaining()).await
}

// Becomes:

async fn convert(locks: &Client, product: &str) -> Result<(), Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<(), Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(locks)
        .semaphore(::lockset::__private::format!("licences:{0}", product))
        .permits(LICENCES)
        .fair()
        .lease(::lockset::__private::millis(10000u64));
    let __lockset_guard = match __lockset_lock
        .try_acquire_for(::lockset::__private::millis(5000u64))
        .await
    {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => {
            return ::lockset::__private::busy(&__lockset_lock).await;
        }
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let g = &__lockset_guard;
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<(), Error>>()
            {
                return __lockset_never;
            }
            work(g.remaining()).await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
