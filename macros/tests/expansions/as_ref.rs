//! The client of `self`, a fair lock, and an error if it is busy.

#[locked(fair "desk:{self.desk}", try)]
async fn serve(self: Arc<Self>) -> anyhow::Result<()> {
    self.next().await
}

// Becomes:

async fn serve(self: Arc<Self>) -> anyhow::Result<()> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<anyhow::Result<()>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client_of::<Self>(&self)
        .fair_lock(::lockset::__private::format!("desk:{0}", self.desk));
    let __lockset_guard = match __lockset_lock.try_lock().await {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => {
            return ::lockset::__private::busy(&__lockset_lock).await;
        }
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<anyhow::Result<()>>()
            {
                return __lockset_never;
            }
            self.next().await
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
