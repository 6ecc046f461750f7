//! Several locks, skipped if one is held.

#[locked(all("order:{id}", read "prices", fair "stock:{sku:?}", write "shelf"), client = app.locks, busy = skip)]
async fn place(app: &App, Line { id, sku }: Line) -> Result<Option<Receipt>, Error> {
    Ok(Some(app.place(id, sku).await?))
}

// Becomes:

async fn place(app: &App, Line { id, sku }: Line) -> Result<Option<Receipt>, Error> {
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<Option<Receipt>, Error>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = match ::lockset::__private::all(match ::lockset::__private::client(&app.locks) {
        __lockset_client => [
            ::lockset::__private::Member::from(
                __lockset_client.lock(::lockset::__private::format!("order:{0}", id)),
            ),
            ::lockset::__private::Member::from(__lockset_client.rw_lock("prices").read_side()),
            ::lockset::__private::Member::from(
                __lockset_client.fair_lock(::lockset::__private::format!("stock:{0:?}", sku)),
            ),
            ::lockset::__private::Member::from(__lockset_client.rw_lock("shelf").write_side()),
        ],
    }) {
        ::core::result::Result::Ok(__lockset_lock) => __lockset_lock,
        ::core::result::Result::Err(__lockset_error) => {
            return ::lockset::__private::failed(__lockset_error);
        }
    };
    let __lockset_guard = match __lockset_lock.try_lock().await {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => return ::lockset::__private::skipped(),
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<Option<Receipt>, Error>>()
            {
                return __lockset_never;
            }
            Ok(Some(app.place(id, sku).await?))
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
