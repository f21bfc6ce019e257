pub mod cmq;
pub mod emulator;
pub mod event;
pub mod handler;
pub mod store;
