//! A read lock; the whole return value if it is busy; a time that is computed; another path to the crate.

#[locked("config", read, wait = self.patience, busy = Ok(Config::default()), crate = crate::locks)]
async fn config(&self) -> Result<Config, Error> {
    self.load().await
}

// Becomes:

async fn config(&self) -> Result<Config, Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        crate::locks::__private::returns::<Result<Config, Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = crate::locks::__private::client_of::<Self>(&self)
        .rw_lock("config")
        .read_side();
    let __lockset_guard = match __lockset_lock.try_lock_for(self.patience).await {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => return Ok(Config::default()),
        ::core::result::Result::Err(__lockset_error) => {
            return crate::locks::__private::failed(__lockset_error);
        }
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                crate::locks::__private::returns::<Result<Config, Error>>()
            {
                return __lockset_never;
            }
            self.load().await
        })
        .await;
    crate::locks::__private::finish(__lockset_guard, __lockset_done).await
}
