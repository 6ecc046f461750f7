//! All function shapes that the attribute accepts.

use std::borrow::Cow;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use lockset::{Client, locked};

use super::{Failed, is_held, start};
use crate::support::nothing_left;

#[derive(Clone, Debug)]
struct Line {
    sku: String,
    counts: (u32, u32),
}

#[derive(Clone, Debug)]
struct Order {
    id: u64,
    lines: [Line; 1],
}

impl Order {
    fn new(id: u64) -> Self {
        let line = Line {
            sku: "anvil".to_owned(),
            counts: (3, 4),
        };
        Self { id, lines: [line] }
    }

    fn number(&self) -> u64 {
        self.id
    }
}

/// A type that offers clients in several ways.
#[derive(Clone, Debug)]
struct Shop {
    locks: Client,
    shared: Arc<Client>,
    name: &'static str,
}

impl AsRef<Client> for Shop {
    fn as_ref(&self) -> &Client {
        &self.locks
    }
}

#[locked("free")]
async fn free(locks: &Client) -> Result<bool, Failed> {
    Ok(is_held(locks, "free").await)
}

#[locked("owned")]
async fn owned(locks: Client) -> lockset::Result<bool> {
    Ok(is_held(&locks, "owned").await)
}

mod by_path {
    #[lockset::locked("by_path")]
    pub(super) async fn qualified(locks: &lockset::Client) -> anyhow::Result<bool> {
        anyhow::ensure!(super::is_held(locks, "by_path").await);
        Ok(true)
    }
}

/// The client is bound by a pattern, like an extractor of a web framework.
#[locked("pattern:{id}", client = locks)]
async fn pattern(
    (locks, id): (Client, u64),
    Order { id: other, .. }: Order,
) -> Result<bool, Box<dyn std::error::Error>> {
    Ok(is_held(&locks, &format!("pattern:{id}")).await && other == 7)
}

impl Shop {
    #[locked("field:{order.id}:{order.lines.len()}:{self.name}", client = self.locks)]
    async fn field(&self, order: &Order) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, &format!("field:{}:1:shop", order.id)).await)
    }

    /// Any expression that dereferences to a client.
    #[locked("shared", client = self.shared)]
    async fn shared(&self) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, "shared").await)
    }

    #[locked("self")]
    async fn by_ref(&self) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, "self").await)
    }

    #[locked("self:{self.name:?}")]
    async fn by_mut(&mut self) -> Result<bool, Failed> {
        self.name = "other";
        Ok(is_held(&self.locks, "self:\"shop\"").await)
    }

    #[locked("self")]
    async fn by_value(self) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, "self").await)
    }

    #[locked("self:{self.name}")]
    async fn by_arc(self: Arc<Self>) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, "self:shop").await)
    }

    #[locked("self")]
    async fn by_box(self: Box<Self>) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, "self").await)
    }

    #[locked("self")]
    async fn by_pin(self: Pin<&mut Self>) -> Result<bool, Failed> {
        Ok(is_held(&self.locks, "self").await)
    }

    /// In Java, a call within the same object bypasses the proxy and so the lock. Here every call
    /// is locked.
    #[locked("outer")]
    async fn calls_itself(&self) -> Result<bool, Failed> {
        let both = self.by_ref().await?;
        Ok(both && is_held(&self.locks, "outer").await)
    }
}

#[tokio::test]
async fn functions_and_methods() {
    let (server, client) = start().await;
    let shop = Shop {
        locks: client.clone(),
        shared: Arc::new(client.clone()),
        name: "shop",
    };
    assert!(free(&client).await.unwrap());
    assert!(owned(client.clone()).await.unwrap());
    assert!(by_path::qualified(&client).await.unwrap());
    assert!(pattern((client.clone(), 3), Order::new(7)).await.unwrap());
    assert!(shop.field(&Order::new(7)).await.unwrap());
    assert!(shop.shared().await.unwrap());
    assert!(shop.by_ref().await.unwrap());
    assert!(shop.clone().by_mut().await.unwrap());
    assert!(shop.clone().by_value().await.unwrap());
    assert!(Arc::new(shop.clone()).by_arc().await.unwrap());
    assert!(Box::new(shop.clone()).by_box().await.unwrap());
    assert!(Pin::new(&mut shop.clone()).by_pin().await.unwrap());
    assert!(shop.calls_itself().await.unwrap());
    nothing_left(&server).await;
}

#[locked("generic:{id}")]
async fn generic<T, const N: usize>(locks: &Client, id: T, all: [T; N]) -> Result<usize, Failed>
where
    T: Display + Send + Copy,
{
    assert!(is_held(locks, &format!("generic:{id}")).await);
    Ok(all.len())
}

#[locked("borrowed:{key}:{order.id}")]
async fn borrowed<'a>(locks: &Client, key: &str, order: &'a Order) -> Result<&'a str, Failed> {
    assert!(is_held(locks, &format!("borrowed:{key}:{}", order.id)).await);
    Ok(&order.lines[0].sku)
}

#[locked("elided")]
async fn elided(_locks: &Client, text: Cow<'_, str>) -> Result<String, Failed> {
    Ok(text.into_owned())
}

#[locked("implied:{what:?}")]
async fn implied(
    locks: &Client,
    what: impl Debug + Send,
    work: impl AsyncFnOnce() -> u32,
) -> Result<u32, Failed> {
    assert!(is_held(locks, &format!("implied:{what:?}")).await);
    Ok(work().await)
}

/// The return type is opaque.
#[locked("hidden")]
async fn hidden(
    _locks: &Client,
    mut from: u32,
) -> Result<impl Iterator<Item = u32> + use<>, Failed> {
    from += 1;
    if from > 100 {
        return Err(Failed::Work("too many"));
    }
    Ok(from..from + 3)
}

/// The body is not `Send`, so the future is not `Send` either.
#[locked("local")]
async fn local(locks: &Client, one: Rc<u32>) -> Result<u32, Box<dyn std::error::Error>> {
    let other = Rc::clone(&one);
    tokio::task::yield_now().await;
    assert!(is_held(locks, "local").await);
    Ok(*other + *one)
}

#[locked("methods:{order.number()}:{order.lines.len():>04}:{{x}}")]
async fn formats(locks: &Client, order: &Order) -> Result<bool, Failed> {
    Ok(is_held(locks, "methods:7:0001:{x}").await)
}

#[locked("tuple:{pair.0}:{nested.1.0}:{PLACE}")]
async fn tuples(locks: &Client, pair: (u8, u8), nested: (u8, (u8, u8))) -> Result<bool, Failed> {
    let name = format!("tuple:{}:{}:here", pair.0, nested.1.0);
    Ok(is_held(locks, &name).await)
}

const PLACE: &str = "here";

#[tokio::test]
async fn generics_and_lifetimes() {
    let (server, client) = start().await;
    let order = Order::new(7);
    assert_eq!(generic(&client, 5, [1, 2, 3]).await.unwrap(), 3);
    assert_eq!(borrowed(&client, "k", &order).await.unwrap(), "anvil");
    assert_eq!(elided(&client, "x".into()).await.unwrap(), "x");
    assert_eq!(implied(&client, "x", async || 7).await.unwrap(), 7);
    let some = hidden(&client, 1).await.unwrap();
    assert_eq!(some.collect::<Vec<_>>(), [2, 3, 4]);
    assert!(matches!(
        hidden(&client, 100).await,
        Err(Failed::Work("too many"))
    ));
    assert_eq!(local(&client, Rc::new(4)).await.unwrap(), 8);
    assert!(formats(&client, &order).await.unwrap());
    assert!(tuples(&client, (1, 2), (3, (4, 5))).await.unwrap());
    let (bought, left) = order.lines[0].counts;
    assert_eq!((bought, left), (3, 4));
    nothing_left(&server).await;
}

#[async_trait::async_trait]
trait Boxed {
    async fn ship(&self, id: u64) -> Result<u64, Failed>;
    async fn name<'a>(&'a self, prefix: &str) -> Result<Cow<'a, str>, Failed>;
    async fn end(self: Box<Self>, code: u8) -> lockset::Result<u8>;
}

#[async_trait::async_trait]
impl Boxed for Shop {
    #[locked("boxed:{id}", wait = "5s", guard = held)]
    async fn ship(&self, id: u64) -> Result<u64, Failed> {
        assert!(is_held(&self.locks, &format!("boxed:{id}")).await);
        assert_eq!(held.name(), format!("boxed:{id}"));
        if id == 0 {
            return Err(Failed::Work("no order"));
        }
        Ok(id)
    }

    #[locked("boxed:{prefix}:{self.name}", client = self.locks)]
    async fn name<'a>(&'a self, prefix: &str) -> Result<Cow<'a, str>, Failed> {
        assert!(is_held(&self.locks, &format!("boxed:{prefix}:shop")).await);
        Ok(self.name.into())
    }

    #[locked("boxed")]
    async fn end(self: Box<Self>, code: u8) -> lockset::Result<u8> {
        assert!(is_held(&self.locks, "boxed").await);
        Ok(code)
    }
}

trait Native {
    fn ship(&self, id: u64) -> impl Future<Output = Result<u64, Failed>> + Send;

    #[locked("native:{id}")]
    async fn by_default(&self, id: u64) -> Result<bool, Failed>
    where
        Self: AsRef<Client>,
    {
        Ok(is_held(self.as_ref(), &format!("native:{id}")).await)
    }
}

impl Native for Shop {
    #[locked("native:{id}")]
    async fn ship(&self, id: u64) -> Result<u64, Failed> {
        assert!(is_held(&self.locks, &format!("native:{id}")).await);
        Ok(id)
    }
}

#[locked("future:{id}", try)]
fn future(locks: &Client, id: u64) -> impl Future<Output = Result<u64, Failed>> + Send {
    let doubled = id * 2;
    async move {
        assert!(is_held(locks, &format!("future:{id}")).await);
        Ok(doubled)
    }
}

#[locked("box:{id}")]
fn boxed(
    locks: &Client,
    id: u64,
) -> Pin<Box<dyn Future<Output = Result<u64, Failed>> + Send + '_>> {
    Box::pin(async move {
        assert!(is_held(locks, &format!("box:{id}")).await);
        Ok(id)
    })
}

/// Generated by another macro, with names from the macro and from its caller.
macro_rules! generated {
    ($name:ident, $key:literal, $id:ident) => {
        #[locked($key, fenced = token)]
        async fn $name(locks: &Client, $id: u64) -> Result<u64, Failed> {
            assert!(is_held(locks, &format!($key)).await);
            assert!(token.get() > 0);
            Ok($id)
        }
    };
}

generated!(by_macro, "generated:{number}", number);

/// The crate under another name.
mod renamed {
    pub(super) use ::lockset as locks;
}

#[locked("renamed", crate = renamed::locks)]
async fn renamed_crate(locks: &Client) -> Result<bool, Failed> {
    Ok(is_held(locks, "renamed").await)
}

#[tokio::test]
async fn traits_futures_and_macros() {
    let (server, client) = start().await;
    let shop = Shop {
        locks: client.clone(),
        shared: Arc::new(client.clone()),
        name: "shop",
    };
    let boxed_shop: Box<dyn Boxed + Send + Sync> = Box::new(shop.clone());
    assert_eq!(boxed_shop.ship(7).await.unwrap(), 7);
    assert!(matches!(
        boxed_shop.ship(0).await,
        Err(Failed::Work("no order"))
    ));
    assert_eq!(boxed_shop.name("x").await.unwrap(), "shop");
    assert_eq!(boxed_shop.end(3).await.unwrap(), 3);
    assert_eq!(Native::ship(&shop, 8).await.unwrap(), 8);
    assert!(shop.by_default(9).await.unwrap());
    assert_eq!(future(&client, 4).await.unwrap(), 8);
    assert_eq!(boxed(&client, 4).await.unwrap(), 4);
    assert_eq!(by_macro(&client, 4).await.unwrap(), 4);
    assert!(renamed_crate(&client).await.unwrap());
    nothing_left(&server).await;
}

fn can_be_sent<F: Future + Send>(future: F) -> F {
    future
}

#[tokio::test]
async fn a_function_whose_body_can_be_sent_can_be_sent() {
    let (server, client) = start().await;
    let order = Order::new(7);
    can_be_sent(free(&client)).await.unwrap();
    can_be_sent(borrowed(&client, "k", &order)).await.unwrap();
    can_be_sent(formats(&client, &order)).await.unwrap();
    let spawned = {
        let client = client.clone();
        lockset_testkit::spawn(async move { by_path::qualified(&client).await })
    };
    assert!(spawned.await.unwrap().unwrap());
    nothing_left(&server).await;
}
