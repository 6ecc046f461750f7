//! Draws the model, as of one moment.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::model::{Detail, Model, Row, State};
use crate::output::shown;
use crate::span;

const BAR: usize = 10;
const TAPE_LINES: u16 = 4;

/// The widths of the columns; name and holder share the rest.
const KIND: usize = 5;
const AGE: usize = 8;
const LEFT: usize = 7;
const WAIT: usize = 4;
const RATE: usize = 5;
const FIXED: usize = KIND + AGE + BAR + 1 + LEFT + WAIT + RATE + 6;

/// The least widths of name and holder.
const NAME_MIN: usize = 8;
const HOLDER_MIN: usize = 20;

/// One frame, as of a moment since the beginning.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, now: Duration) {
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(1),
        Constraint::Length(TAPE_LINES),
        Constraint::Length(1),
    ]);
    let [head, body, lane, tape, foot] = areas.areas(frame.area());
    let now = if model.is_frozen { model.last.at } else { now };
    frame.render_widget(Paragraph::new(header(model, head.width)), head);
    match &model.open {
        _ if model.is_helping => frame.render_widget(Paragraph::new(KEYS), body),
        Some(name) => frame.render_widget(Paragraph::new(page(model, name, now)), body),
        None => table(frame, body, model, now),
    }
    frame.render_widget(Paragraph::new(queue(model)), lane);
    frame.render_widget(Paragraph::new(events(model)), tape);
    frame.render_widget(Paragraph::new(footer(model)), foot);
}

/// The page of the keys, and of the columns that need words.
const KEYS: &str = "\
up, down, k, j  choose a lock
enter           the page of the lock
esc             back, and no filter
/               filter by name or holder
s               sort by waiters, age, rate, name
space           freeze the view
Ctrl-Z          stop; `fg` continues
q, Ctrl-C       quit

LEASE  drains until the next renewal; yellow: the renewal is late
LEFT   of the lease; - for a kind without leases
AGE    how long the holder has had the lock, as far as it is known
WAIT   waiters   GR/S  grants per second, at least

ops/s are commands of other clients: the view's own are left out";

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn header(model: &Model, width: u16) -> Vec<Line<'static>> {
    let last = &model.last;
    let state = match (&last.trouble, model.is_frozen) {
        (Some(trouble), _) => Span::styled(shown(trouble), Style::new().fg(Color::Red)),
        (None, true) => Span::styled("frozen", Style::new().fg(Color::Yellow)),
        (None, false) => Span::raw(format!(
            "rtt {:.1} ms  {} ops/s",
            last.round_trip.as_secs_f64() * 1000.0,
            last.ops_per_second
        )),
    };
    let waiting: usize = model.rows().iter().map(|row| row.seen.waiters).sum();
    let facts = format!(
        "{} locks  {} waiting  {:.1}+ grants/s  {} clients  by {}",
        model.held(),
        waiting,
        model.rate(),
        last.clients,
        model.sort.name()
    );
    let server = fit(&shown(&last.server), usize::from(width).saturating_sub(40));
    vec![
        Line::from(vec![
            Span::styled(format!("lockset top  {server}  "), bold()),
            state,
        ]),
        Line::styled(facts, dim()),
    ]
}

/// Cut or filled to a width.
fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text:width$}");
    }
    let cut: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{cut}~")
}

/// The widths of name and holder. The holder gets what it needs once the names have what they need; spare room is
/// the name's.
fn widths(width: u16, rows: &[&Row]) -> (usize, usize) {
    let longest = |text: &dyn Fn(&Row) -> String| {
        let lengths = rows.iter().map(|row| shown(&text(row)).chars().count());
        lengths.max().unwrap_or_default()
    };
    let room = usize::from(width).saturating_sub(FIXED);
    let name = longest(&|row| row.seen.name.clone()).max(NAME_MIN);
    let spare = room.saturating_sub(name).max(HOLDER_MIN);
    let holder = longest(&holder_text).clamp(HOLDER_MIN, spare);
    (room.saturating_sub(holder).max(NAME_MIN), holder)
}

fn table(frame: &mut Frame<'_>, area: Rect, model: &Model, now: Duration) {
    let rows = model.rows();
    let (name, holder) = widths(area.width, &rows);
    let headings = format!(
        "{:name$} {:KIND$} {:holder$} {:>AGE$} {:BAR$} {:>LEFT$} {:>WAIT$} {:>RATE$}",
        "NAME", "KIND", "HOLDER", "AGE", "LEASE", "LEFT", "WAIT", "GR/S"
    );
    let mut lines = vec![Line::styled(headings, bold())];
    let room = usize::from(area.height).saturating_sub(1);
    let at = model.at(&rows);
    // The cursor is always in sight.
    let first = (at + 1).saturating_sub(room);
    for (number, row) in rows.iter().enumerate().skip(first).take(room) {
        let line = row_line(row, now, name, holder);
        lines.push(if number == at {
            line.style(Style::new().add_modifier(Modifier::REVERSED))
        } else {
            line
        });
    }
    if rows.is_empty() {
        lines.push(Line::styled("no locks are held or waited for", dim()));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn colour(state: State) -> Color {
    match state {
        State::Held => Color::Green,
        State::Late => Color::Yellow,
        State::Free => Color::DarkGray,
        State::Expired => Color::Red,
    }
}

/// A bar that drains with the lease; none for a kind without leases.
fn bar(row: &Row, now: Duration) -> String {
    if row.seen.remaining.is_none() {
        return " ".repeat(BAR);
    }
    let full = (row.left(now) * BAR as f64).round() as usize;
    let full = full.min(BAR);
    format!("{}{}", "█".repeat(full), "·".repeat(BAR - full))
}

fn holder_text(row: &Row) -> String {
    let seen = &row.seen;
    match row.state {
        State::Free => "free".to_owned(),
        State::Expired => format!("lost by {}", seen.who),
        _ if seen.holders > 1 => format!("{} +{}", seen.who, seen.holders - 1),
        _ => seen.who.clone(),
    }
}

fn row_line(row: &Row, now: Duration, name: usize, holder: usize) -> Line<'static> {
    let seen = &row.seen;
    let age = match row.state {
        State::Free | State::Expired => "-".to_owned(),
        _ => span::show(row.age(now)),
    };
    let rate = if row.rate < 0.05 {
        "-".to_owned()
    } else {
        format!("{:.1}", row.rate)
    };
    let style = Style::new().fg(colour(row.state));
    Line::from(vec![
        Span::raw(format!(
            "{} {} ",
            fit(&shown(&seen.name), name),
            fit(kind(seen.kind), KIND)
        )),
        Span::styled(fit(&shown(&holder_text(row)), holder), style),
        Span::raw(format!(" {age:>AGE$} ")),
        Span::styled(bar(row, now), style),
        Span::raw(format!(
            " {:>LEFT$} {:>WAIT$} {rate:>RATE$}",
            row.remaining(now).map_or("-".to_owned(), span::show),
            seen.waiters,
        )),
    ])
}

fn kind(kind: &str) -> &str {
    match kind {
        "exclusive" => "lock",
        "read-write" => "rw",
        "semaphore" => "sem",
        "election" => "lead",
        other => other,
    }
}

/// The queue of the lock under the cursor: a full circle for a waiter of this library, a hollow one for
/// Redisson, a cross for a dead waiter.
fn queue(model: &Model) -> Line<'static> {
    let Some(detail) = detail(model) else {
        return Line::raw("");
    };
    let lane: String = detail.queue.iter().take(40).map(glyph).collect();
    if lane.is_empty() {
        let waits = detail.waits.first();
        let text = waits.map_or("no queue at the server".to_owned(), |(who, lasts)| {
            format!("longest wait {} by {}", span::show(*lasts), shown(who))
        });
        return Line::styled(format!("{}: {text}", shown(&detail.name)), dim());
    }
    let legend = "  ● lockset ○ Redisson × gone";
    Line::from(vec![
        Span::raw(format!("{}: ", shown(&detail.name))),
        Span::styled(lane, Style::new().fg(Color::Cyan)),
        Span::styled(legend, dim()),
    ])
}

fn glyph(place: &super::model::Place) -> char {
    match (place.is_ours, place.is_dead) {
        (true, false) => '●',
        (false, false) => '○',
        (_, true) => '×',
    }
}

fn detail(model: &Model) -> Option<&Detail> {
    let selected = model.selected();
    let detail = model.last.detail.as_ref();
    detail.filter(|detail| Some(&detail.name) == selected.as_ref())
}

/// The page of one lock.
fn page(model: &Model, name: &str, now: Duration) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled(shown(name), bold())];
    if let Some(row) = model.row(name) {
        let token = row
            .seen
            .token
            .map_or("none".to_owned(), |token| token.to_string());
        let left = row.remaining(now).map_or("none".to_owned(), |left| {
            format!("{} of {}", span::show(left), span::show(row.lease))
        });
        lines.push(Line::from(vec![
            Span::raw("lease    "),
            Span::styled(bar(row, now), Style::new().fg(colour(row.state))),
            Span::raw(format!(" {left}")),
        ]));
        lines.push(Line::raw(format!("token    {token}")));
        lines.push(Line::raw(format!("waiters  {}", row.seen.waiters)));
    }
    let Some(detail) = detail(model) else {
        return lines;
    };
    lines.push(Line::raw(format!("server   {}", shown(&detail.server))));
    let facts = detail.facts.iter();
    lines.extend(facts.map(|fact| Line::raw(format!("         {}", shown(fact)))));
    let holders = detail.holders.iter();
    lines.extend(holders.map(|holder| Line::raw(format!("held by  {}", shown(holder)))));
    for (number, place) in detail.queue.iter().enumerate() {
        let text = format!(
            "{:>7}. {} {} {}",
            number + 1,
            glyph(place),
            shown(&place.who),
            if place.is_dead {
                "gone".to_owned()
            } else {
                span::show(place.kept)
            }
        );
        lines.push(Line::raw(text));
    }
    let waits = detail.waits.iter();
    lines.extend(waits.map(|(who, lasts)| {
        Line::raw(format!(
            "waits    {} for {}",
            shown(who),
            span::show(*lasts)
        ))
    }));
    lines
}

fn events(model: &Model) -> Vec<Line<'static>> {
    let some = model.tape.iter().take(usize::from(TAPE_LINES));
    let lines = some.map(|happened| {
        let ago = span::show(model.last.at.saturating_sub(happened.at));
        let colour = if happened.is_bad {
            Color::Red
        } else {
            Color::Reset
        };
        let text = format!("{ago:>7} ago  {}", shown(&happened.text));
        Line::styled(text, Style::new().fg(colour))
    });
    lines.collect()
}

fn footer(model: &Model) -> Line<'static> {
    if model.is_filtering {
        return Line::raw(format!("/{}_", shown(&model.filter)));
    }
    let filter = match model.filter.as_str() {
        "" => String::new(),
        filter => format!("  [{}]", shown(filter)),
    };
    Line::styled(
        format!("q quit  ? help  / filter  s sort  enter open  esc back  space freeze{filter}"),
        dim(),
    )
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::verb::top::model::{Action, Place, Sample, Seen};

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn seen(name: &str, kind: &'static str, who: &str, left: u64, waiters: usize) -> Seen {
        Seen {
            name: name.to_owned(),
            kind,
            holder: who.to_owned(),
            who: who.to_owned(),
            holders: usize::from(!who.is_empty()),
            age: Some(s(3600)),
            remaining: Some(s(left)),
            waiters,
            longest_wait: None,
            token: Some(1_763_800_000_000_000),
        }
    }

    fn model() -> Model {
        let mut model = Model::default();
        let locks = |left: u64| {
            vec![
                seen("seats:show:1", "exclusive", "web-3 4121 (seats)", 30, 41),
                seen("desk:1", "fair", "9f2c3a44..:7", left, 3),
                seen("größe\x1b[2J", "read-write", "batch-1 880 (report)", 25, 0),
            ]
        };
        let sample = |at: u64, left: u64| Sample {
            at: s(at),
            locks: locks(left),
            looked_for: vec!["gone".to_owned()],
            server: "127.0.0.1:6379".to_owned(),
            ops_per_second: 1204,
            clients: 12,
            round_trip: Duration::from_micros(400),
            detail: Some(Detail {
                name: "desk:1".to_owned(),
                server: "127.0.0.1:6379".to_owned(),
                facts: Vec::new(),
                holders: vec!["9f2c3a44..:7 once".to_owned()],
                queue: [(true, false), (false, false), (true, true)]
                    .map(|(is_ours, is_dead)| Place {
                        is_ours,
                        is_dead,
                        who: "web-3 4121 (seats)".to_owned(),
                        kept: s(3),
                    })
                    .to_vec(),
                waits: Vec::new(),
            }),
            trouble: None,
            has_failed: false,
        };
        model.take(sample(0, 30));
        model.take(sample(17, 13));
        model.act(Action::Down);
        model
    }

    fn frame(model: &Model, now: Duration) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, model, now)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = (0..24).map(|y| {
            let cells = (0..80).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned() + "\n"
    }

    /// Compares with the frame in `frames/`, which `LOCKSET_WRITE_FRAMES=1` writes.
    #[track_caller]
    fn is_kept(name: &str, frame: &str) {
        let path = format!(
            "{}/src/verb/top/frames/{name}.txt",
            env!("CARGO_MANIFEST_DIR")
        );
        if std::env::var_os("LOCKSET_WRITE_FRAMES").is_some() {
            std::fs::write(&path, frame).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(frame, kept, "{path}");
    }

    #[test]
    fn the_table_is_drawn() {
        is_kept("table", &frame(&model(), s(18)));
    }

    #[test]
    fn the_page_of_a_lock_is_drawn() {
        let mut model = model();
        model.act(Action::Open);
        is_kept("page", &frame(&model, s(18)));
    }

    #[test]
    fn a_frozen_view_stands_still() {
        let mut model = model();
        model.act(Action::Freeze);
        assert_eq!(frame(&model, s(18)), frame(&model, s(99)));
        is_kept("frozen", &frame(&model, s(99)));
    }

    #[test]
    fn the_keys_are_drawn() {
        let mut model = model();
        model.act(Action::Help);
        is_kept("keys", &frame(&model, s(18)));
        model.act(Action::Back);
        assert_eq!(frame(&model, s(18)), frame(&self::model(), s(18)));
    }

    #[test]
    fn a_long_holder_is_shown_whole_where_there_is_room() {
        let who = "build-host-17 26538 (./deploy-everything.sh)";
        let mut model = Model::default();
        let locks = vec![seen("deploy", "exclusive", who, 30, 0)];
        model.take(Sample {
            locks,
            ..Sample::default()
        });
        for (width, is_whole) in [(80, false), (110, true)] {
            let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
            terminal.draw(|frame| draw(frame, &model, s(1))).unwrap();
            let screen = terminal.backend().to_string();
            assert_eq!(screen.contains(who), is_whole, "{screen}");
            assert!(
                screen.contains("deploy") && screen.contains("GR/S"),
                "{screen}"
            );
        }
    }

    #[test]
    fn a_window_of_any_size_is_drawn() {
        let model = model();
        for (width, height) in [(1, 1), (20, 5), (80, 9), (200, 60)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &model, s(1))).unwrap();
        }
    }
}
