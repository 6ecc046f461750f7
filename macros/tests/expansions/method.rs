//! A method with everything that has a value.

#[locked(
    "order:{order.id}", client = self.locks, wait = "5s", lease = "30s", busy = Refusal::Busy,
    fenced = token, guard = g, at_least = "1s", max_hold = "1m 30s", owner = &self.me
)]
/// Ships it.
#[must_use]
pub async fn ship<'a, T: Into<Order>>(&self, order: &'a Order, how: impl Fn(T)) -> Result<&'a str, Refusal>
where
    T: Send,
{
    self.db.ship(order, token, g.remaining()).await?;
    Ok(&order.name)
}

// Becomes:

#[doc = " Ships it."]
#[must_use]
pub async fn ship<'a, T: Into<Order>>(&self, order: &'a Order, how: impl Fn(T)) -> Result<&'a str, Refusal>
where
    T: Send,
{
    if let ::core::option::Option::Some(__lockset_never) =
        ::lockset::__private::returns::<Result<&'a str, Refusal>>()
    {
        return __lockset_never;
    }
    let __lockset_lock = ::lockset::__private::client(&self.locks)
        .lock(::lockset::__private::format!("order:{0}", order.id))
        .lease(::lockset::__private::millis(30000u64))
        .at_least(::lockset::__private::millis(1000u64))
        .max_hold(::lockset::__private::millis(90000u64))
        .owner(&self.me)
        .fenced();
    let __lockset_guard = match __lockset_lock
        .try_lock_for(::lockset::__private::millis(5000u64))
        .await
    {
        ::core::result::Result::Ok(::core::option::Option::Some(__lockset_guard)) => __lockset_guard,
        ::core::result::Result::Ok(::core::option::Option::None) => {
            return ::lockset::__private::busy_value::<Result<&'a str, Refusal>, _>(Refusal::Busy);
        }
        ::core::result::Result::Err(__lockset_error) => return ::lockset::__private::failed(__lockset_error),
    };
    let token = ::lockset::__private::token(&__lockset_guard);
    let g = &__lockset_guard;
    let __lockset_done = __lockset_guard
        .run(async move {
            if let ::core::option::Option::Some(__lockset_never) =
                ::lockset::__private::returns::<Result<&'a str, Refusal>>()
            {
                return __lockset_never;
            }
            self.db.ship(order, token, g.remaining()).await?;
            Ok(&order.name)
        })
        .await;
    ::lockset::__private::finish(__lockset_guard, __lockset_done).await
}
