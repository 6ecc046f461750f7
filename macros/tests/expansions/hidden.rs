//! `impl Trait` has no name inside of the body.

#[locked("{a.0}:{b.name()}", client = LOCKS, fenced)]
async fn list(a: (u8, u8), b: &Name) -> Result<impl Iterator<Item = u8> + use<>, Error> {
    Ok([a.0, a.1].into_iter())
}

// Becomes:

async fn list(a: (u8, u8), b: &Name) -> Result<impl Iterator<Item = u8> + use<>, Error> {
    if let ::core::option::Option::Some(__lockset_never) = ::lockset::__private::returns::<Result<_, Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(&LOCKS)
        .lock(::lockset::__private::format!("{0}:{1}", a.0, b.name()))
        .fenced();
    let __lockset_guard = match __lockset_lock.lock().await {
        ::core::result::Result::Ok(__lockset_guard) => __lockset_guard,
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<_, Error>>()
            {
                return __lockset_never;
            }
            Ok([a.0, a.1].into_iter())
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
