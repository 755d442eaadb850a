//! Makes messages from chance: what serde knows of their types says what is chosen. So a request
//! that is added to the table is fuzzed, and asked by hostile clients, without another line.

use crate::Request;
use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor, value,
};

/// Most elements of a list.
const ITEMS_MAX: u64 = 4;

/// Where values come from.
pub trait Source {
    /// A number below `end`, which is not 0.
    fn below(&mut self, end: u64) -> u64;

    /// A number: an address, a size, an id.
    fn word(&mut self) -> u64;

    /// A text: a name, mostly.
    fn text(&mut self) -> String;
}

/// A value of a type; `None` if chance made none that the type admits.
pub fn sample<T: DeserializeOwned>(source: &mut dyn Source) -> Option<T> {
    T::deserialize(Sampler { source, variant: None }).ok()
}

/// A request of a kind ([`Request::kind`]); `None` as [`sample`].
pub fn request(kind: usize, source: &mut dyn Source) -> Option<Request> {
    let variant = u32::try_from(kind).ok();
    serde::Deserialize::deserialize(Sampler { source, variant }).ok()
}

/// Answers a type that asks for a value.
struct Sampler<'s> {
    source: &'s mut dyn Source,
    /// The variant of the enum that is asked for first, if it is settled.
    variant: Option<u32>,
}

/// The same, for what is inside.
struct Parts<'s> {
    source: &'s mut dyn Source,
    left: u64,
    variant: u32,
}

/// Defines methods for numbers.
macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty,)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.$visit(self.source.word() as $type)
        })+
    };
}

impl<'de, 's> Deserializer<'de> for Sampler<'s> {
    type Error = value::Error;

    numbers! {
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_bool(self.source.below(2) == 0)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.source.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.source.below(2) {
            0 => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let left = self.source.below(ITEMS_MAX + 1);
        visitor.visit_seq(Parts { source: self.source, left, variant: 0 })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Parts { source: self.source, left: len as u64, variant: 0 })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let left = self.source.below(ITEMS_MAX + 1);
        visitor.visit_map(Parts { source: self.source, left, variant: 0 })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let chosen = self.source.below(variants.len().max(1) as u64) as u32;
        let variant = self.variant.unwrap_or(chosen);
        visitor.visit_enum(Parts { source: self.source, left: 0, variant })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("no message describes itself"))
    }

    serde::forward_to_deserialize_any! {
        f32 f64 char bytes byte_buf unit_struct tuple_struct identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = value::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Self::Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(Sampler { source: self.source, variant: None }).map(Some)
    }
}

impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = value::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Self::Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, Self::Error> {
        seed.deserialize(Sampler { source: self.source, variant: None })
    }
}

impl<'de, 's> EnumAccess<'de> for Parts<'s> {
    type Error = value::Error;
    type Variant = Parts<'s>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Self::Error> {
        let number: U32Deserializer<Self::Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for Parts<'_> {
    type Error = value::Error;

    fn unit_variant(self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, Self::Error> {
        seed.deserialize(Sampler { source: self.source, variant: None })
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        Sampler { source: self.source, variant: None }.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.tuple_variant(fields.len(), visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, encode};

    /// Numbers in turn.
    struct Turns(u64);

    impl Source for Turns {
        fn below(&mut self, end: u64) -> u64 {
            self.word() % end
        }

        fn word(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            self.0 >> 32
        }

        fn text(&mut self) -> String {
            format!("n{}", self.below(3))
        }
    }

    #[test]
    fn requests_of_every_kind_are_made_and_come_back() {
        let mut source = Turns(1);
        for kind in 0..Request::KINDS.len() {
            for _ in 0..50 {
                let made = request(kind, &mut source).expect("each kind can be made");
                assert_eq!(made.kind(), kind);
                let packet = encode(7, &made).expect("it is short");
                assert_eq!(decode(&packet), Ok((7, made)));
            }
        }
    }
}
