#![no_main]

// Small inputs: the second reading is byte by byte.
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if data.len() <= 4_096 {
        assert!(tidegate_gateway::http1::reads_alike(data));
    }
});
