//! The bytes of an answer, to every action: an answer or an error, and what was read can be told again.
#![no_main]

use hapax::cmq::answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let done = answer::done(bytes);
    let _ = answer::sent(bytes).map(|_| assert!(done.is_ok()));
    let _ = answer::sent_list(bytes).map(|_| assert!(done.is_ok()));
    let _ = answer::route(bytes).map(|_| assert!(done.is_ok()));
    let _ = answer::received(bytes);
    let _ = answer::deleted_list(bytes);
    let Ok(messages) = answer::received_list(bytes) else { return };
    let told = serde_json::json!({ "code": 0, "msgInfoList": messages }).to_string();
    assert_eq!(answer::received_list(told.as_bytes()), Ok(messages));
});
