//! Axes: from values to places, and where to draw a line: pure.

/// From values to places on a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    left: f64,
    right: f64,
    log: bool,
}

impl Scale {
    /// Whole decades around all values.
    pub(super) fn log(values: impl Iterator<Item = f64>, (left, right): (f64, f64)) -> Self {
        let values = values.filter(|value| *value > 0.0).map(f64::log10);
        let (low, high) = values.fold((-0.1_f64, 0.1_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        // Half decades, more or less: 1, 3, 10, 30.
        let (low, high) = ((low * 2.0).floor() / 2.0, (high * 2.0).ceil() / 2.0);
        Self {
            low,
            high,
            left,
            right,
            log: true,
        }
    }

    /// From nothing to the largest value.
    pub(super) fn linear(values: impl Iterator<Item = f64>, (left, right): (f64, f64)) -> Self {
        let high = values.fold(1.0, f64::max);
        Self {
            low: 0.0,
            high,
            left,
            right,
            log: false,
        }
    }

    /// Where a value is; one beyond an end is at that end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if self.log {
            value.max(1e-9).log10()
        } else {
            value
        };
        let share = (value - self.low) / (self.high - self.low);
        self.left + share.clamp(0.0, 1.0) * (self.right - self.left)
    }

    /// Values that get a line.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (low, high) = (self.low.ceil() as i32, self.high.floor() as i32);
            return (low..=high).map(|exponent| 10_f64.powi(exponent)).collect();
        }
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
        let step = steps.into_iter().find(|step| self.high / step <= 5.0);
        let step = step.unwrap_or(self.high);
        let count = (self.high / step).floor() as u32;
        (0..=count).map(|index| f64::from(index) * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_order_and_within() {
        let scale = Scale::log([0.05, 17.0].into_iter(), (100.0, 400.0));
        let places = [0.001, 0.05, 1.0, 17.0, 1000.0].map(|value| scale.place(value));
        assert!(places.is_sorted());
        assert_eq!((places[0], places[4]), (100.0, 400.0));
        assert_eq!(scale.ticks(), [0.1, 1.0, 10.0]);
        assert_eq!(
            Scale::linear([13.0].into_iter(), (0.0, 1.0)).ticks(),
            [0.0, 5.0, 10.0]
        );
    }
}
