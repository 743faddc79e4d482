#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_engine::fuzz::error_body(data));
