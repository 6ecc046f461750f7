//! All locks of a list, of one kind, on replicas.

#[locked(each(write &names), client = self.locks, replicated(1, "500ms"), give_up_after = "2s")]
async fn move_all(&self, names: Vec<String>) -> Result<(), Error> {
    self.shelf.fill(names).await
}

// Becomes:

async fn move_all(&self, names: Vec<String>) -> Result<(), Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<(), Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = match ::lockset::__private::each(
        ::lockset::__private::client(&self.locks),
        &names,
        |__lockset_client, __lockset_name| {
            ::lockset::__private::Member::from(__lockset_client.rw_lock(__lockset_name).write_side())
        },
    ) {
        ::core::result::Result::Ok(__lockset_lock) => __lockset_lock,
        ::core::result::Result::Err(__lockset_error) => {
            return ::lockset::__private::failed(__lockset_error);
        }
    }
    .give_up_after(::lockset::__private::millis(2000u64))
    .replicated(1, ::lockset::__private::millis(500u64));
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
            self.shelf.fill(names).await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
