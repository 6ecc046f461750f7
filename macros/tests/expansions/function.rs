//! The shortest: it waits as long as it takes.

#[locked("nightly")]
async fn nightly(locks: &Client) -> Result<(), Error> {
    report().await
}

// Becomes:

async fn nightly(locks: &Client) -> Result<(), Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<(), Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(locks).lock("nightly");
    let __lockset_guard = match __lockset_lock.lock().await {
        ::core::result::Result::Ok(__lockset_guard) => __lockset_guard,
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<(), Error>>()
            {
                return __lockset_never;
            }
            report().await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
