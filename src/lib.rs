pub mod cmq;
pub mod emulator;
pub mod event;
