//! Example sites: each checks without a word, which is a test.

/// Example sites, as paths below `examples/` with their texts. `minimal/` and `full/` are each a whole site.
#[must_use]
pub fn examples() -> &'static [(&'static str, &'static str)] {
    &[
        ("minimal/site.yaml", include_str!("../examples/minimal/site.yaml")),
        ("full/site.yaml", include_str!("../examples/full/site.yaml")),
        ("full/hardware.yaml", include_str!("../examples/full/hardware.yaml")),
        ("full/models.yaml", include_str!("../examples/full/models.yaml")),
        ("full/deployments.yaml", include_str!("../examples/full/deployments.yaml")),
        ("full/profiles/glm-5.3-flash.yaml", include_str!("../examples/full/profiles/glm-5.3-flash.yaml")),
        ("full/aliases.yaml", include_str!("../examples/full/aliases.yaml")),
        ("full/schedules.yaml", include_str!("../examples/full/schedules.yaml")),
        ("full/teams.yaml", include_str!("../examples/full/teams.yaml")),
    ]
}
