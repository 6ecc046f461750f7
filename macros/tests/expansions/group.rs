//! A group of the metrics.

#[locked("order:{id}", fenced = token, group = "orders")]
async fn ship(locks: &Client, id: u64) -> Result<(), Error> {
    book(id, token).await
}

// Becomes:

async fn ship(locks: &Client, id: u64) -> Result<(), Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<(), Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(locks)
        .lock(::lockset::__private::format!("order:{0}", id))
        .fenced()
        .group("orders");
    let __lockset_guard = match __lockset_lock.lock().await {
        ::core::result::Result::Ok(__lockset_guard) => __lockset_guard,
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let token = ::lockset::__private::token(&__lockset_guard);
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<(), Error>>()
            {
                return __lockset_never;
            }
            book(id, token).await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
