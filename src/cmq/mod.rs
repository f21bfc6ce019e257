//! The TDMQ for CMQ HTTP data-flow protocol: types, signing, credentials and the client.
//!
//! Nothing in here knows what a message means; see [`crate::event`] for that.

pub mod answer;
mod client;
mod credentials;
mod error;
mod parameters;
mod protocol;
mod provider;
pub mod signature;

pub use client::{Client, ClientOptions, Endpoint, EndpointError};
pub use credentials::{Credentials, CredentialsError};
pub use error::{CmqError, ErrorClass};
pub use parameters::{ArrayError, Parameters};
pub use protocol::{
    ApiErrorCode, DEFAULT_PATH, DeleteFailure, MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES,
    MAX_NAME_BYTES, MAX_POLLING_WAIT_SECONDS, Message, is_valid_name,
};
pub use provider::{CredentialProvider, CredentialSource, ProviderError};
