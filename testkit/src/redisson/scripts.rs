//! The scripts, each after the functions that it calls.

/// A script, and its name in a panic.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

macro_rules! script {
    ($constant:ident = $($piece:literal),* => $name:literal) => {
        pub(super) const $constant: Script = Script {
            name: $name,
            text: concat!(
                $(include_str!(concat!("lua/", $piece, ".lua")),)*
                include_str!(concat!("lua/", $name, ".lua")),
            ),
        };
    };
}

script!(LOCK_ACQUIRE = => "lock_acquire");
script!(LOCK_RELEASE = "latch" => "lock_release");
script!(LOCK_FORCE_UNLOCK = => "lock_force_unlock");
script!(LOCK_RENEW = => "lock_renew");
script!(FAIR_ACQUIRE = "fair_queue" => "fair_acquire");
script!(FAIR_TRY = "fair_queue" => "fair_try");
script!(FAIR_GIVE_UP = => "fair_give_up");
script!(FAIR_RELEASE = "latch", "fair_queue" => "fair_release");
script!(FAIR_FORCE_UNLOCK = "fair_queue" => "fair_force_unlock");
script!(READ_ACQUIRE = => "read_acquire");
script!(READ_RELEASE = "latch" => "read_release");
script!(READ_RENEW = => "read_renew");
script!(WRITE_ACQUIRE = => "write_acquire");
script!(WRITE_RELEASE = "latch" => "write_release");
script!(RW_FORCE_UNLOCK = => "rw_force_unlock");
