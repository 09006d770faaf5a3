//! atrace-subscriber
