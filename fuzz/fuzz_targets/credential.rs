#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_identity::fuzz::credential(data));
