//! Fencing tokens that a hold gets after its grant.

use super::event::Event;
use super::shell::Hold;
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::lost::LostReason;
use crate::conn::Lane;
use crate::script::reply;
use crate::script::{Call, CallBudget, catalog};

impl Hold {
    /// Asks for a fencing token for a hold without one. `None` if the hold is lost.
    pub(super) async fn ask_for_token(
        &self,
        operation: &'static str,
        budget: CallBudget,
    ) -> Result<Option<FencingToken>> {
        let (key, token_key) = (self.name.key(), self.name.token_key());
        let call = Call::new(&catalog::TAKE_TOKEN, key, &[key, &token_key])
            .arg(&*self.holder)
            .arg(self.core.timing.token_retention);
        let answer = self.ask(&call, operation, budget).await?;
        let token = reply::taken_token(&answer.value)?;
        if token.is_none() {
            self.apply(Event::Lost(LostReason::Revoked));
        }
        Ok(token)
    }

    /// Raises the server's counter of fencing tokens to at least `token`, which is the token of this hold from now
    /// on. Used for tokens that other servers gave for the lock.
    pub(super) async fn raise_token(
        &self,
        token: FencingToken,
        operation: &'static str,
    ) -> Result<()> {
        let key = self.name.key();
        let call = Call::new(&catalog::RAISE_TOKEN, key, &[&self.name.token_key()]);
        let call = call.arg(token.get()).arg(self.core.timing.token_retention);
        let budget = self.call_budget();
        let raised = self.core.scripts.run(Lane::Command, &call, budget).await;
        raised.map_err(|failure| failure.into_error(operation).of_lock(self.name()))?;
        self.apply(Event::TokenRaised(token));
        Ok(())
    }
}
