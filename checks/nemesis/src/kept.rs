//! The guards of locks, semaphores and elections, used alike.

use std::time::Duration;

use lockset::{Guard, Leadership, LostReason, SemaphoreGuard};

/// A guard of any kind.
pub(crate) enum Kept {
    Lock(Box<dyn Guard>),
    Permits(SemaphoreGuard),
    Lead(Leadership),
}

impl Kept {
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => guard.fencing_token().map(|token| token.get()),
            Self::Permits(_) => None,
            Self::Lead(leads) => Some(leads.token().get()),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.remaining(),
            Self::Permits(guard) => guard.remaining(),
            Self::Lead(leads) => leads.remaining(),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::Lock(guard) => guard.is_lost(),
            Self::Permits(guard) => guard.is_lost(),
            Self::Lead(leads) => leads.is_lost(),
        }
    }

    pub(crate) async fn lost(&self) -> LostReason {
        match self {
            Self::Lock(guard) => guard.lost().await,
            Self::Permits(guard) => guard.lost().await,
            Self::Lead(leads) => leads.lost().await,
        }
    }

    pub(crate) async fn release(self) -> lockset::Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permits(guard) => guard.release().await,
            Self::Lead(leads) => leads.resign().await,
        }
    }
}
