//! The scripts, run as the server runs them: Lua 5.1, `redis.call` and `redis.pcall`, its conversions and
//! its error replies.
//!
//! One interpreter a thread serves all simulated servers, as a script keeps nothing from one call to the
//! next. Invariant: while a script runs, its server is the thread's current one, and is borrowed by the script alone.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use mlua::state::{GcIncParams, GcMode};
use mlua::{
    BString, Either, Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value,
    Variadic,
};
use rustc_hash::FxHashMap;

use crate::number;
use crate::reply::Reply;
use crate::words::Words;

/// The initial state of Redis' own interpreter, as far as scripts see it.
const BEGIN: &str = "
local raw, locate, error, type, xpcall = ...
redis = { REDIS_VERSION_NUM = 0x00070000 }
function redis.call(...)
  local reply, failed = raw(...)
  if failed then error(reply, 0) end
  return reply
end
function redis.pcall(...)
  return (raw(...))
end
function redis.error_reply(text)
  if not text:find(' ', 1, true) then text = 'ERR ' .. text end
  if text:sub(1, 1) == '-' then text = text:sub(2) end
  return { err = text }
end
function redis.status_reply(text) return { ok = text } end
local function handler(failure)
  if type(failure) ~= 'table' then failure = { err = 'ERR ' .. tostring(failure) } end
  failure.line = locate()
  return failure
end
return function(script) return xpcall(script, handler) end
";

/// How much there may be before garbage is looked for again, in percent of what was left of it last.
const GC_PAUSE: i32 = 400;

/// Runs the commands that scripts call.
pub(crate) trait Host: Any {
    fn run_inside_script(&mut self, words: &Words) -> Reply;
}

struct Interpreter {
    lua: Lua,
    run: Function,
    /// By what identifies its text.
    functions: RefCell<FxHashMap<Arc<str>, Function>>,
}

thread_local! {
    static INTERPRETER: Interpreter = Interpreter::new().expect("an interpreter");
    static CURRENT: RefCell<Option<Box<dyn Host>>> = const { RefCell::new(None) };
    static WORDS: RefCell<Words> = RefCell::default();
}

impl Interpreter {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        // Scripts leave little garbage, so it is collected less often.
        lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(GC_PAUSE)));
        let raw = lua.create_function(call)?;
        let locate = lua.create_function(|lua, ()| Ok(line_of_script(lua)))?;
        let globals = lua.globals();
        let own: Vec<Value> = ["error", "type", "xpcall"]
            .into_iter()
            .map(|name| globals.get(name))
            .collect::<mlua::Result<_>>()?;
        let args = [Value::Function(raw), Value::Function(locate)];
        let args: MultiValue = args.into_iter().chain(own).collect();
        let run = lua.load(BEGIN).set_name("=redis").call(args)?;
        Ok(Self {
            lua,
            run,
            functions: RefCell::default(),
        })
    }

    fn function(&self, key: &Arc<str>, text: &str) -> mlua::Result<Function> {
        if let Some(known) = self.functions.borrow().get(key) {
            return Ok(known.clone());
        }
        let chunk = self.lua.load(text).set_name("@user_script");
        let function = chunk.into_function()?;
        self.functions
            .borrow_mut()
            .insert(Arc::clone(key), function.clone());
        Ok(function)
    }

    fn list<'a>(&self, words: impl Iterator<Item = &'a [u8]>) -> mlua::Result<Table> {
        // Text goes into the table by the shorter way.
        let words = words.map(|word| match std::str::from_utf8(word) {
            Ok(text) => Either::Left(text),
            Err(_) => Either::Right(BString::from(word)),
        });
        self.lua.create_sequence_from(words)
    }

    fn run(&self, script: &Script<'_>) -> mlua::Result<Reply> {
        let function = self.function(script.key, script.text)?;
        let globals = self.lua.globals();
        let (keys, args) = (script.first, script.first + script.keys);
        globals.raw_set(
            "KEYS",
            self.list(script.words.from(keys).take(script.keys))?,
        )?;
        globals.raw_set("ARGV", self.list(script.words.from(args))?)?;
        let (done, value): (bool, Value) = self.run.call(function)?;
        if done {
            return reply_of(&value);
        }
        let Value::Table(failure) = value else {
            return Ok(Reply::error("ERR a failure without words"));
        };
        let text: LuaString = failure.raw_get("err")?;
        let line: Option<i64> = failure.raw_get("line")?;
        let place = line.map_or(String::new(), |line| format!(", on @user_script:{line}."));
        Ok(Reply::error(format!(
            "{} script: {}{place}",
            text.to_string_lossy(),
            script.sha
        )))
    }
}

/// One call of a script.
pub(crate) struct Script<'a> {
    /// The identity of its text: its SHA, unless the text was changed.
    pub(crate) key: &'a Arc<str>,
    pub(crate) text: &'a str,
    pub(crate) sha: &'a str,
    pub(crate) words: &'a Words,
    /// The first key among the words, and how many there are; arguments follow.
    pub(crate) first: usize,
    pub(crate) keys: usize,
}

/// Returns an error unless this is a script.
pub(crate) fn check(sha: &str, text: &str) -> Result<(), Reply> {
    INTERPRETER.with(|interpreter| {
        let wrong = |error: mlua::Error| {
            Reply::error(format!(
                "ERR Error compiling script (new function): {error}"
            ))
        };
        interpreter
            .function(&sha.into(), text)
            .map(drop)
            .map_err(wrong)
    })
}

/// Runs a script on its host, which comes back with the reply.
pub(crate) fn run<H: Host>(host: Box<H>, script: &Script<'_>) -> (Box<H>, Reply) {
    CURRENT.set(Some(host));
    let reply = INTERPRETER.with(|interpreter| interpreter.run(script));
    let reply = reply.unwrap_or_else(|error| Reply::error(format!("ERR {error}")));
    let host: Box<dyn Any> = CURRENT.take().expect("given above, and nobody takes it");
    (host.downcast().expect("the one given above"), reply)
}

/// `redis.call` without its raising: the reply, and whether it is an error.
fn call(lua: &Lua, args: Variadic<Value>) -> mlua::Result<(Value, bool)> {
    let words = WORDS.with_borrow_mut(|words| {
        words.clear();
        let mut are_words = !args.is_empty();
        for arg in args.iter() {
            match arg {
                Value::String(text) => words.push(&text.as_bytes()),
                Value::Integer(number) => words.push(number.to_string().as_bytes()),
                Value::Number(number) => words.push(number::text(*number).as_bytes()),
                _ => are_words = false,
            }
        }
        are_words.then(|| std::mem::take(words))
    });
    let Some(words) = words else {
        let no = "ERR Lua redis lib command arguments must be strings or integers";
        return Ok((error_table(lua, no)?, true));
    };
    let reply = CURRENT.with_borrow_mut(|host| {
        let host = host.as_mut().expect("a script runs on a host");
        host.run_inside_script(&words)
    });
    WORDS.set(words);
    let is_error = matches!(reply, Reply::Error(_));
    Ok((value_of(lua, &reply)?, is_error))
}

fn error_table(lua: &Lua, text: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set("err", text)?;
    Ok(Value::Table(table))
}

fn value_of(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        #[expect(clippy::cast_precision_loss, reason = "as the server does")]
        Reply::Int(number) => Value::Number(*number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.raw_set("ok", *text)?;
            Value::Table(table)
        }
        Reply::Error(text) => error_table(lua, text)?,
        Reply::Array(items) | Reply::Pairs(items) | Reply::Push(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, value_of(lua, item)?)?;
            }
            Value::Table(table)
        }
    })
}

/// A number as a server on x86-64 replies it: what is none, or out of range, is the lowest one.
#[expect(clippy::cast_possible_truncation, reason = "as the server does")]
fn whole(number: f64) -> i64 {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if (-END..END).contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}

/// The result of a script, as a reply.
fn reply_of(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::bulk(&text.as_bytes()),
        Value::Number(number) => Reply::Int(whole(*number)),
        Value::Integer(number) => Reply::Int(*number),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Reply::error(text.to_string_lossy()));
            }
            if let Value::String(_) = table.raw_get("ok")? {
                return Ok(Reply::OK);
            }
            let mut items = Vec::new();
            loop {
                match table.raw_get(items.len() + 1)? {
                    Value::Nil => return Ok(Reply::Array(items)),
                    item => items.push(reply_of(&item)?),
                }
            }
        }
        _ => Reply::Nil,
    })
}

/// The line at which the script failed.
fn line_of_script(lua: &Lua) -> Option<usize> {
    (0..).find_map(|level| {
        let seen = lua.inspect_stack(level, |frame| {
            let is_script = frame.source().source.as_deref() == Some("@user_script");
            is_script.then(|| frame.current_line()).flatten()
        });
        // The end of the stack ends the search too.
        seen.map_or(Some(None), |line| line.map(Some))
    })?
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn a_number_is_replied_as_a_server_does() {
        for (number, replied) in [
            (-3.7, -3),
            (9_007_199_254_740_992.0, 9_007_199_254_740_992),
            (f64::NAN, i64::MIN),
            (f64::INFINITY, i64::MIN),
            (1e300, i64::MIN),
        ] {
            assert_eq!(whole(number), replied, "{number}");
        }
    }
}
