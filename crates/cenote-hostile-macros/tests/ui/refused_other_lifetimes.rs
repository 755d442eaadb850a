// The lifetimes of a value and of its field are one: neither is shortened alone.
#![forbid(unsafe_code)]
use cenote::field;
use cenote::ptr::FieldOffset;

struct Holder<'x> {
    text: &'x str,
}

struct Two<'x, 'y> {
    first: Holder<'x>,
    second: fn(&'y str),
}

fn longer_field<'a>(text: &'a str) -> &'static str {
    let place: FieldOffset<Holder<'a>, &'static str> = field!(Holder<'static>, text);
    *place.get(&Holder { text })
}

fn inferred<'a>(text: &'a str) -> &'static str {
    let place: FieldOffset<Holder<'a>, &'static str> = field!(Holder<'_>, text);
    *place.get(&Holder { text })
}

fn shorter_field<'a>() -> FieldOffset<Holder<'static>, &'a str> {
    field!(Holder<'static>, text)
}

fn through_another<'a, 'b>() -> FieldOffset<Two<'a, 'b>, &'b str> {
    field!(Two<'a, 'b>, first.text)
}

fn contravariant<'a, 'b>() -> FieldOffset<Two<'a, 'b>, fn(&'a str)> {
    field!(Two<'a, 'b>, second)
}

fn composed<'a>() -> FieldOffset<Two<'a, 'a>, &'static str> {
    field!(Two<'a, 'a>, first).then(field!(Holder<'static>, text))
}

fn main() {
    let text = String::from("freed");
    let _ = (longer_field(&text), inferred(&text), shorter_field());
    let _ = (through_another(), contravariant(), composed());
}
