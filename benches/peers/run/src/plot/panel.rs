//! Panels: a heading, a row a peer, and lines from top to bottom where the axis has its ticks.

use super::scale::Scale;
use super::svg::{Anchor, Svg};

/// Height of a row.
pub(super) const ROW: f64 = 22.0;

/// The heights of the heading, and of the ticks under the rows.
const HEAD: f64 = 14.0;
const FOOT: f64 = 42.0;

/// Height of a footnote.
const NOTE: f64 = 16.0;

/// Two beside each other, with room for names on the left of each and for values on the right.
const LEFT: [f64; 2] = [24.0, 500.0];
const NAMES: f64 = 96.0;
const WIDTH: f64 = 436.0;
const VALUES: f64 = 64.0;

/// Where a panel is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    left: f64,
    right: f64,
    top: f64,
    rows: usize,
}

impl Panel {
    /// The panel at `column`, of two, with this number of rows.
    pub(super) fn half(column: usize, top: f64, rows: usize) -> Self {
        let left = LEFT[column];
        Self {
            left,
            right: left + WIDTH,
            top,
            rows,
        }
    }

    /// As wide as the drawing.
    pub(super) fn whole(top: f64, rows: usize) -> Self {
        Self {
            left: LEFT[0],
            right: LEFT[1] + WIDTH,
            top,
            rows,
        }
    }

    /// Where values have their places.
    pub(super) fn span(&self) -> (f64, f64) {
        (self.left + NAMES, self.right - VALUES)
    }

    pub(super) fn height(&self, notes: usize) -> f64 {
        HEAD + self.rows as f64 * ROW + FOOT + notes as f64 * NOTE
    }

    /// The top of a row.
    pub(super) fn row(&self, index: usize) -> f64 {
        self.top + HEAD + index as f64 * ROW
    }

    /// Heading and ticks; what is 1 is drawn stronger, if it means something.
    pub(super) fn frame(&self, svg: &mut Svg, heading: &str, scale: &Scale, unit: &str) {
        svg.text((self.left, self.top), Anchor::Start, "head", heading);
        let (top, bottom) = (self.row(0), self.row(self.rows));
        for tick in scale.ticks() {
            let x = scale.place(tick);
            let class = if tick == 1.0 && unit == "×" {
                "one"
            } else {
                "grid"
            };
            svg.line((x, top), (x, bottom), class);
            let label = format!("{tick}{unit}");
            svg.text((x, bottom + 14.0), Anchor::Middle, "tick", &label);
        }
    }

    /// The name of whom a row is about.
    pub(super) fn name(&self, svg: &mut Svg, index: usize, name: &str) {
        let class = if name == "lockset" { "ours-text" } else { "" };
        let at = (self.left + NAMES - 8.0, self.row(index) + 16.0);
        svg.text(at, Anchor::End, class, name);
    }

    /// A line of small print under the ticks.
    pub(super) fn footnote(&self, svg: &mut Svg, index: usize, note: &str) {
        let at = (
            self.left + 16.0,
            self.row(self.rows) + 32.0 + index as f64 * NOTE,
        );
        svg.text(at, Anchor::Start, "lack", note);
    }

    /// A figure at the right end of a row.
    pub(super) fn value(&self, svg: &mut Svg, index: usize, value: &str) {
        let at = (self.right, self.row(index) + 16.0);
        svg.text(at, Anchor::End, "small", value);
    }

    /// The heading of the figures at the right ends.
    pub(super) fn value_head(&self, svg: &mut Svg, heading: &str) {
        svg.text((self.right, self.top), Anchor::End, "small", heading);
    }

    /// A word in place of a mark.
    pub(super) fn remark(&self, svg: &mut Svg, index: usize, remark: &str) {
        let at = (self.left + NAMES + 6.0, self.row(index) + 16.0);
        svg.text(at, Anchor::Start, "lack", remark);
    }
}
