//! A lock on the servers of a `Redlock`.

#[locked("order:{id}", redlock = self.quorum, wait = "5s", fenced = token)]
async fn ship(&self, id: u64) -> Result<(), Error> {
    self.db.ship(id, token).await
}

// Becomes:

async fn ship(&self, id: u64) -> Result<(), Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<(), Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::redlock(&self.quorum)
        .lock(::lockset::__private::format!("order:{0}", id))
        .fenced();
    let __lockset_guard = match __lockset_lock
        .try_lock_for(::lockset::__private::millis(5000u64))
        .await
    {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => {
            return ::lockset::__private::busy(&__lockset_lock).await;
        }
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
            self.db.ship(id, token).await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
