//! What `async_trait` leaves of a method.

#[locked("order:{id}")]
fn ship<'life0, 'async_trait>(
    &'life0 self,
    id: u64,
) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = Result<(), Error>> + ::core::marker::Send + 'async_trait>>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        let __self = self;
        let id = id;
        __self.db.ship(id).await
    })
}

// Becomes:

fn ship<'life0, 'async_trait>(
    &'life0 self,
    id: u64,
) -> ::core::pin::Pin<
    Box<dyn ::core::future::Future<Output = Result<(), Error>> + ::core::marker::Send + 'async_trait>,
>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        if let ::core::option::Option::Some(__lockset_never) =
            ::lockset::__private::returns::<Result<(), Error>>()
        {
            return __lockset_never;
        }
        let __lockset_lock = ::lockset::__private::client_of::<Self>(&self)
            .lock(::lockset::__private::format!("order:{0}", id));
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
                let __self = self;
                let id = id;
                __self.db.ship(id).await
            })
            .await;
        ::lockset::__private::finish(__lockset_guard, __lockset_done).await
    })
}
