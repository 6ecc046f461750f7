//! The two parts of the configuration, one key each at the server.

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;

use crate::support::Result;
use crate::support::server::LockServer;

#[derive(Clone)]
pub(crate) struct Parts {
    connection: MultiplexedConnection,
    /// The keys.
    keys: [String; 2],
}

impl Parts {
    pub(crate) fn new(connection: MultiplexedConnection, config: &str) -> Self {
        Self {
            connection,
            keys: ["hosts", "limits"].map(|part| format!("{config}:{part}")),
        }
    }

    /// Writes version 0 of both parts.
    pub(crate) async fn create(server: &LockServer, config: &str) -> Result<Self> {
        let parts = Self::new(server.connection(), config);
        for part in 0..2 {
            parts.write(part, 0).await?;
        }
        Ok(parts)
    }

    /// The version of a part.
    pub(crate) async fn read(&self, part: usize) -> Result<u64> {
        Ok(self.connection.clone().get(&self.keys[part]).await?)
    }

    pub(crate) async fn write(&self, part: usize, version: u64) -> Result<()> {
        let mut connection = self.connection.clone();
        Ok(connection.set(&self.keys[part], version).await?)
    }

    pub(crate) async fn delete(self) -> Result<()> {
        Ok(self.connection.clone().del(&self.keys[..]).await?)
    }
}
