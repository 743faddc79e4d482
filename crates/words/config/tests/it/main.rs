//! The documents as operators write them, checked through the public interface.

mod design;
