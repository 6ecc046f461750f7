//! A plot of the samples: grants per second, memory and connections over time.

use std::fmt::Write as _;

use crate::record::Sample;

const WIDTH: f64 = 720.0;
const ROW: f64 = 90.0;
const LEFT: f64 = 130.0;

pub(crate) fn draw(topology: &str, samples: &[Sample]) -> String {
    let grants: Vec<f64> = samples
        .windows(2)
        .map(|pair| (pair[1].done.grants - pair[0].done.grants) as f64)
        .collect();
    let memory: Vec<f64> = samples
        .iter()
        .map(|sample| sample.memory as f64 / 1024.0)
        .collect();
    let connections: Vec<f64> = samples
        .iter()
        .map(|sample| sample.connections as f64)
        .collect();
    let rows = [
        ("grants/s", grants),
        ("memory, MiB", memory),
        ("connections", connections),
    ];

    let height = ROW * rows.len() as f64 + 40.0;
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {:.0} {height:.0}' \
         font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n\
         <text x='10' y='20' font-size='14'>{topology}: {} s, a fault every 5 s</text>\n",
        WIDTH + LEFT + 20.0,
        samples.len(),
    );
    for (row, (name, values)) in rows.iter().enumerate() {
        let bottom = 30.0 + ROW * (row as f64 + 1.0);
        let largest = values.iter().copied().fold(1.0, f64::max);
        let points: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(at, value)| {
                let x = LEFT + WIDTH * at as f64 / values.len().max(2) as f64;
                let y = bottom - (ROW - 20.0) * value / largest;
                format!("{x:.1},{y:.1}")
            })
            .collect();
        // Writing to a string cannot fail.
        _ = writeln!(
            svg,
            "<text x='10' y='{bottom:.0}'>{name}</text>\n\
             <text x='10' y='{:.0}' fill='gray'>up to {largest:.0}</text>\n\
             <line x1='{LEFT}' y1='{bottom:.0}' x2='{:.0}' y2='{bottom:.0}' stroke='lightgray'/>\n\
             <polyline points='{}' fill='none' stroke='steelblue'/>",
            bottom - 16.0,
            LEFT + WIDTH,
            points.join(" "),
        );
    }
    svg + "</svg>\n"
}
