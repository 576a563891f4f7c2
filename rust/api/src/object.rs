//! How the types of API objects are declared: once, for reading, writing and checking alike.

/// Declares an API object: fields are camelCase in JSON (or named after `=`), read leniently, left out when absent.
macro_rules! object {
    ($(#[$meta:meta])* $name:ident { $( $(#[$field_meta:meta])* $field:ident $(= $wire:literal)? : $type:ty ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(
                    default,
                    deserialize_with = "crate::shape::null_as_default",
                    skip_serializing_if = "crate::shape::Shape::is_absent"
                )]
                $(#[serde(rename = $wire)])?
                pub $field: $type,
            )*
        }

        impl crate::shape::Shape for $name {
            fn check(value: &serde_json::Value, field: &str, errors: &mut Vec<crate::shape::FieldError>) {
                crate::shape::check_members(value, field, errors, &[
                    $( (
                        crate::shape::wire_name(stringify!($field), None$(.or(Some($wire)))?),
                        <$type as crate::shape::Shape>::check,
                    ), )*
                ]);
            }
        }
    };
}
pub(crate) use object;
