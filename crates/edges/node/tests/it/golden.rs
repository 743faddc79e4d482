//! G 20: qwen-70b, TP 4, GPUs 0-3, NUMA node 0, port 8001, 0.90.

use std::fs;

use tidegate_node::nvml::scripted::Scripted;
use tidegate_node::{Machine, ModelAt, ModelFile, ModelUse, Node};

use crate::house::{Alive, House, close, id, kill, order, pid};

#[tokio::test]
async fn an_engine_sees_exactly_its_gpus_and_is_bound_to_its_numa_node() {
    let (mut house, _driver) = House::with(Scripted::b300_x8());
    // A machine whose node 0 has the first CPU of this one, and whose node 1 has the others.
    let sys = house.path().join("sys");
    let node = |number: u32, cpus: &str| {
        let folder = sys.join(format!("devices/system/node/node{number}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cpulist"), cpus).unwrap();
        fs::write(folder.join("meminfo"), format!("Node {number} MemTotal: 1048576 kB\n")).unwrap();
    };
    node(0, "0\n");
    node(1, "1-127\n");
    house.settings.machine = Machine { sys, ..Machine::default() };
    let model = house.path().join("sha256-AAAA");
    fs::create_dir(&model).unwrap();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");

    // `vllm` is a script that says what it was given.
    let bin = house.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let vllm = bin.join("vllm");
    let script = "#!/bin/sh\necho \"vllm $*\" >&3\necho \"$CUDA_VISIBLE_DEVICES\" >&3\nexec sleep 1000\n";
    fs::write(&vllm, alive.script(script).replacen("exec 3>", "#!/bin/sh\nexec 3>", 1)).unwrap();
    fs::set_permissions(&vllm, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();

    let mut wish = order("qwen-70b-0-g1", "");
    wish.command.program = "vllm".to_owned();
    let args = "serve {{model}} --tensor-parallel-size 4 --gpu-memory-utilization 0.90 --port {{port}}";
    wish.command.args = args.split(' ').map(str::to_owned).collect();
    wish.command.env = [("PATH".to_owned(), format!("{}:{path}", bin.display()))].into();
    wish.model = Some(ModelUse { at: ModelAt::Local(model.clone()), file: ModelFile::Folder });
    wish.gpus = vec![0, 1, 2, 3];
    wish.numa = Some(0);
    wish.ports = (8001, 8001);
    // An address of the loopback network that nobody else listens at.
    wish.host = [127, 0, 20, 20].into();
    let report = node.start(1, wish).await.unwrap();

    let command = "--tensor-parallel-size 4 --gpu-memory-utilization 0.90 --port 8001";
    assert_eq!(alive.word().await, format!("vllm serve {} {command}", model.display()));
    let uuids = (0..4).map(|index| format!("GPU-00000000-0000-0000-0000-{index:012}")).collect::<Vec<_>>();
    assert_eq!(alive.word().await, uuids.join(","));
    assert_eq!(report.port, Some(8001));
    let of = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", pid(&report))).unwrap();
    let status = of("status");
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(line("Cpus_allowed_list:"), "0");
    assert_eq!(line("Mems_allowed_list:"), "0");
    let maps = of("numa_maps");
    assert!(maps.lines().all(|line| line.split(' ').nth(1) == Some("bind:0")), "{maps}");
    kill(&node, &id("qwen-70b-0-g1")).await;
    close(node).await;
}

#[tokio::test]
async fn an_engine_without_gpus_sees_none_and_one_without_a_numa_node_is_unbound() {
    let (house, _driver) = House::with(Scripted::h200());
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let (report, seen) =
        alive.start(&node, order("a-0-g1", "echo \"[$CUDA_VISIBLE_DEVICES]\" >&3\nexec sleep 1000")).await;
    assert_eq!(seen, "[]");
    let maps = fs::read_to_string(format!("/proc/{}/numa_maps", pid(&report))).unwrap();
    assert!(maps.lines().all(|line| line.split(' ').nth(1) == Some("default")), "{maps}");
    kill(&node, &id("a-0-g1")).await;
    alive.ended().await;
    let mut alive = Alive::new(&house, "alive-2");
    // A NUMA node that the machine does not have binds nothing.
    let mut wish = order("b-0-g1", "echo \"[${CUDA_VISIBLE_DEVICES-unset}]\" >&3\nexec sleep 1000");
    wish.numa = Some(63);
    let (_, seen) = alive.start(&node, wish).await;
    assert_eq!(seen, "[]");
    close(node).await;
}
