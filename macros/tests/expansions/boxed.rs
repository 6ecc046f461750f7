//! A boxed future by its short name.

#[locked("{{shop}}:{id:>08}", owner = me)]
fn ship<'a>(locks: &'a Client, me: &'a Owner, id: u64) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(async move { send(id).await })
}

// Becomes:

fn ship<'a>(locks: &'a Client, me: &'a Owner, id: u64) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(async move {
        if let ::core::option::Option::Some(__lockset_never) =
            ::lockset::__private::returns::<Result<(), Error>>()
        {
            return __lockset_never;
        }
        let __lockset_lock = ::lockset::__private::client(locks)
            .lock(::lockset::__private::format!("{{shop}}:{0:>08}", id))
            .owner(me);
        let __lockset_guard = match __lockset_lock.lock().await {
            ::core::result::Result::Ok(__lockset_guard) => __lockset_guard,
            ::core::result::Result::Err(__lockset_error) => {
                return ::lockset::__private::failed(__lockset_error);
            }
        };
        let __lockset_done = __lockset_guard
            .run(async move {
                if let ::core::option::Option::Some(__lockset_never) =
                    ::lockset::__private::returns::<Result<(), Error>>()
                {
                    return __lockset_never;
                }
                send(id).await
            })
            .await;
        ::lockset::__private::finish(__lockset_guard, __lockset_done).await
    })
}
