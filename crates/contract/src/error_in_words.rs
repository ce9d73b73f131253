//! Small errors that hold one sentence for whoever wrote what is wrong. Each crate declares its own.

/// Declares an error that holds a sentence.
#[doc(hidden)]
#[macro_export]
macro_rules! error_in_words {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(::std::string::String);

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl ::std::error::Error for $name {}

        impl ::std::convert::From<::std::string::String> for $name {
            fn from(why: ::std::string::String) -> Self {
                Self(why)
            }
        }

        impl ::std::convert::From<&str> for $name {
            fn from(why: &str) -> Self {
                Self(why.to_owned())
            }
        }

        impl ::std::convert::From<$name> for ::std::string::String {
            fn from(error: $name) -> Self {
                error.0
            }
        }
    };
}

error_in_words! {
    /// Why a setting cannot be used: a sentence for whoever wrote it.
    BadSetting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_is_all_that_it_says() {
        let error = BadSetting::from("expected something else");
        let shown: &dyn std::error::Error = &error;
        assert_eq!(shown.to_string(), "expected something else");
        assert_eq!(String::from(error), "expected something else");
    }
}
