//! What comes from outside is within bounds.

use tidegate_node::{ModelAt, ModelFile, ModelOrder, ModelUse, Node};

use crate::house::{House, close, code, order};

#[tokio::test]
async fn orders_that_make_no_sense_are_refused_and_leave_nothing() {
    let house = House::new();
    let node = house.open().await;
    let mut wish = order("a-0-g1", "exit 0");
    wish.command.args.push("{{model}}".to_owned());
    assert_eq!(code(&node.start(1, wish.clone()).await.unwrap_err()), "bad_request", "no model");
    wish.model = Some(ModelUse { at: ModelAt::Local(house.path().join("none")), file: ModelFile::Folder });
    assert_eq!(code(&node.start(1, wish.clone()).await.unwrap_err()), "unknown_model");
    let stored = ModelAt::Stored { path: "a/1".to_owned(), digest: None };
    wish.model = Some(ModelUse { at: stored, file: ModelFile::Folder });
    assert_eq!(code(&node.start(1, wish).await.unwrap_err()), "bad_request", "no model cache");
    let have = node.have(1, ModelOrder { path: "a/1".to_owned(), digest: None }).await;
    assert_eq!(code(&have.unwrap_err()), "bad_request");
    assert_eq!(node.models().await.unwrap(), []);
    assert_eq!(std::fs::read_dir(house.settings.folder.join("instances")).unwrap().count(), 0);
    close(node).await;
}

#[tokio::test]
async fn a_state_folder_with_a_long_name_has_room_for_sockets() {
    let mut house = House::new();
    house.settings.folder = house.path().join("d".repeat(200)).join("e".repeat(200));
    let node = house.open().await;
    let name = "i".repeat(tidegate_node::INSTANCE_ID_MAX);
    node.start(1, order(&name, "exec sleep 1000")).await.unwrap();
    crate::house::kill(&node, &crate::house::id(&name)).await;
    close(node).await;
}
