//! Sizes, times and addresses: from people and for people.

use std::time::Duration;

const SUFFIXES: [(char, u32); 5] = [('k', 10), ('m', 20), ('g', 30), ('t', 40), ('p', 50)];

/// Bytes from `4096`, `64K`, `2M`, `2MiB`, `1G`, `1T`; powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "{text:?} is no size: give a number of bytes, or a number with K, M, G or \
                          T, such as 64K"
        )
    };
    let lower = text.trim().to_ascii_lowercase();
    let body = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let (digits, shift) = match body.chars().last() {
        Some(last) if !last.is_ascii_digit() => {
            let shift = SUFFIXES
                .iter()
                .find(|(c, _)| *c == last)
                .map(|(_, shift)| *shift)
                .ok_or_else(bad)?;
            (&body[..body.len() - last.len_utf8()], shift)
        }
        _ => (body, 0),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than 64 bits can hold"))
}

/// An address, hexadecimal with `0x`, else decimal.
pub(crate) fn parse_address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no address: give one such as 0x200000000000"))
}

/// Permission bits, octal as `chmod` takes them.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    let parsed = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    parsed.ok_or_else(|| format!("{text:?} is no mode: give one such as 600 or 640"))
}

/// A time from seconds, such as `5` or `0.5`.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| {
        format!(
            "{text:?} is no number of seconds: give \
                                                         one such as 5 or 0.5"
        )
    })?;
    if seconds > 1e9 {
        return Err(format!("{text:?} seconds are too many: the limit is 1000000000"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        format!(
            "{text:?} is no number of seconds: \
                                                              give one such as 5 or 0.5"
        )
    })
}

/// `1.5 MiB`.
pub(crate) fn bytes(value: u64) -> String {
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64;
    let mut unit = "";
    for name in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        scaled /= 1024.0;
        unit = name;
        // What would be shown as 1024.0 is shown in the next unit.
        if scaled < 1023.95 {
            break;
        }
    }
    let number = format!("{scaled:.1}");
    format!("{} {unit}", number.strip_suffix(".0").unwrap_or(&number))
}

/// `12,345`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 pool`, `2 pools`.
pub(crate) fn plural(value: u64, one: &str) -> String {
    let many = |one: &str| match one.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{one}s"),
    };
    if value == 1 { format!("1 {one}") } else { format!("{} {}", count(value), many(one)) }
}

/// `830 us`, `12.3 ms`, `4.2 s`.
pub(crate) fn time(value: Duration) -> String {
    let micros = value.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", value.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", value.as_secs_f64()),
    }
}

/// `2026-11-21 08:15:30 UTC` from seconds since 1970.
pub(crate) fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Eras of 400 years, each year beginning in March, so that the leap day comes last.
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, value) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("2m", 2 << 20),
            ("2MiB", 2 << 20),
            ("1T", 1 << 40),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(value), "{text}");
        }
        for bad in ["", "K", "-1", "1.5G", "2X", "99999999999999999999", "99999999999T", "é", "1é"]
        {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_octal_and_of_nine_bits() {
        assert_eq!((parse_mode("600"), parse_mode("0640")), (Ok(0o600), Ok(0o640)));
        for bad in ["", "8", "1000", "-1", "rw"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_as_people_read_them() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 40, "1 TiB"),
            ((1 << 20) - 1, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(
            (plural(1, "entry"), plural(1000, "entry")),
            ("1 entry".into(), "1,000 entries".into())
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_249_053), "2026-11-21 08:17:33 UTC");
        let _ = date(u64::MAX);
    }

    #[test]
    fn times_that_make_no_sense_are_refused() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "x", "-1", "nan", "inf", "1e99"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
