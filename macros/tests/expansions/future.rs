//! A function that returns a future: what stands before its block runs before the lock.

#[locked("order:{id}", try)]
fn ship(locks: &Client, id: u64) -> impl Future<Output = Result<(), Error>> + Send {
    let name = name(id);
    async move { send(name).await }
}

// Becomes:

fn ship(locks: &Client, id: u64) -> impl Future<Output = Result<(), Error>> + Send {
    let name = name(id);
    async move {
        if let ::core::option::Option::Some(__lockset_never) =
            ::lockset::__private::returns::<Result<(), Error>>()
        {
            return __lockset_never;
        }
        let __lockset_lock =
            ::lockset::__private::client(locks).lock(::lockset::__private::format!("order:{0}", id));
        let __lockset_guard = match __lockset_lock.try_lock().await {
            ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
            ::core::result::Result::Ok(::core::option::Option::None) => {
                return ::lockset::__private::busy(&__lockset_lock).await;
            }
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
                send(name).await
            })
            .await;
        ::lockset::__private::finish(__lockset_guard, __lockset_done).await
    }
}
