//! As much of SVG as the plots take.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;

/// Both grounds are drawn, so that the text is readable on light and dark pages.
const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:17px;font-weight:600}
.head{font-weight:600}
.small,.lack{font-size:12px}
.small,.lack,.tick{fill:#59636e}
.tick{font-size:11px}
.ours-text{font-weight:600;fill:#0757ba}
.ground{fill:#ffffff;stroke:#d1d9e0}
.grid{stroke:#e4e8ec}
.one{stroke:#59636e;stroke-width:1.5}
.range{stroke:#1f2328;stroke-width:1.2}
.ours{fill:#0969da;stroke:#0969da}
.peer{fill:#9aa4b0;stroke:#9aa4b0}
.floor{fill:#c5cdd6;stroke:#c5cdd6}
.light{fill-opacity:.35;stroke:none}
.solid{stroke:none}
.span{stroke-width:5;stroke-linecap:round;stroke-opacity:.45}
.ring{stroke-width:2;fill:#ffffff}
.mark{stroke-width:3}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}
.small,.lack,.tick{fill:#9198a1}
.ours-text{fill:#6cb2ff}
.ground{fill:#0d1117;stroke:#3d444d}
.grid{stroke:#242b33}
.one{stroke:#9198a1}
.range{stroke:#e6edf3}
.ours{fill:#3b8eea;stroke:#3b8eea}
.peer{fill:#6b7683;stroke:#6b7683}
.floor{fill:#454d57;stroke:#454d57}
.ring{fill:#0d1117}
.solid,.light{stroke:none}
}
";

/// Where a text's position is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// With a title and a line of small print; what follows begins at [`TOP`](Self::TOP).
    pub(super) fn new(title: &str, subtitle: &str) -> Self {
        let mut svg = Self::default();
        svg.text((24.0, 34.0), Anchor::Start, "title", title);
        svg.text((24.0, 55.0), Anchor::Start, "small", subtitle);
        svg
    }

    pub(super) const TOP: f64 = 84.0;

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = at;
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        );
    }

    /// A bar between two places of a row, in either order.
    pub(super) fn bar(&mut self, from: f64, to: f64, top: f64, height: f64, class: &str) {
        let (left, right) = (from.min(to), from.max(to));
        let width = (right - left).max(1.0);
        let _ = writeln!(
            self.body,
            r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" class="{class}"/>"#
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" class="{class}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn dot(&mut self, at: (f64, f64), radius: f64, class: &str) {
        let (x, y) = at;
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" class="{class}"/>"#
        );
    }

    pub(super) fn finish(self, height: f64) -> String {
        let (right, bottom) = (WIDTH - 1.0, height - 1.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<style>\n{STYLE}</style>\n\
             <rect x=\"0.5\" y=\"0.5\" width=\"{right}\" height=\"{bottom}\" rx=\"6\" class=\"ground\"/>\n\
             {}</svg>\n",
            self.body
        )
    }
}
