//! Engines are started, told to stop, and leave nothing behind.

use std::time::Duration;

use tidegate_node::{Exit, Happened, InstanceState, LogMark, Node, NodeError, OnExit, Proof, ProvenBy};

use crate::house::{Alive, House, LONG, SHORT, close, code, ended, id, kill, order, pid, report, signal, wait_for};

#[tokio::test]
async fn a_stop_ends_the_engine_in_its_own_order() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let script = "trap 'exit 7' TERM\nsleep 1000 & sleep 1000 & echo ready >&3\nwait";
    let (started, _) = alive.start(&node, order("a-0-g1", script)).await;
    assert!(pid(&started) > 1 && started.port.is_some());
    assert_eq!((started.revision, started.generation, started.deployment.as_str()), (7, 1, "small"));
    node.stop(1, &id("a-0-g1"), LONG).await.unwrap();
    let report = ended(&node, &id("a-0-g1")).await;
    assert!(
        matches!(report.state, InstanceState::Ended { exit: Some(Exit::Code(7)), cause: None, .. }),
        "its own exit code, after SIGTERM: {report:?}"
    );
    alive.ended().await;
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Processes });
    node.forget(1, &id("a-0-g1")).await.unwrap();
    node.forget(1, &id("a-0-g1")).await.unwrap();
    assert_eq!(node.instances().await.unwrap(), []);
    assert!(!house.instance("a-0-g1").exists());
    close(node).await;
}

#[tokio::test]
async fn an_engine_that_ignores_sigterm_is_killed_when_patience_ends_and_a_later_stop_can_only_shorten_it() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let script = "trap '' TERM\n(while :; do sleep 1000; done) & echo ready >&3\nwhile :; do sleep 1000; done";
    alive.start(&node, order("a-0-g1", script)).await;
    node.stop(1, &id("a-0-g1"), LONG).await.unwrap();
    assert_eq!(report(&node, &id("a-0-g1")).await.state, InstanceState::Stopping);
    node.stop(1, &id("a-0-g1"), SHORT).await.unwrap();
    node.stop(1, &id("a-0-g1"), LONG).await.unwrap();
    let report = ended(&node, &id("a-0-g1")).await;
    assert!(
        matches!(report.state, InstanceState::Ended { exit: Some(Exit::Signal(9)), cause: None, .. }),
        "{report:?}"
    );
    alive.ended().await;
    node.stop(1, &id("a-0-g1"), LONG).await.unwrap();
    close(node).await;
}

#[tokio::test]
async fn the_same_instance_wished_twice_at_once_is_started_once() {
    // L14
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let mut wish = order("a-0-g1", "");
    wish.command.args[1] = alive.script("echo ready >&3\nexec sleep 1000");
    let (first, second) = tokio::join!(node.start(1, wish.clone()), node.start(1, wish.clone()));
    assert_eq!(pid(&first.unwrap()), pid(&second.unwrap()));
    let third = node.start(1, wish).await.unwrap();
    assert_eq!(node.instances().await.unwrap(), [third]);
    assert_eq!(alive.word().await, "ready");
    kill(&node, &id("a-0-g1")).await;
    // And this is all that was ever written.
    alive.ended().await;
    close(node).await;
}

#[tokio::test]
async fn output_is_kept_phases_are_seen_and_the_first_exception_is_the_cause() {
    let mut house = House::new();
    house.settings.cause =
        std::sync::Arc::new(|log| log.lines().find(|line| line.contains("Error:")).map(str::to_owned));
    let node = house.open().await;
    let mut wish = order(
        "a-0-g1",
        "echo Starting to load; echo ValueError: no room >&2; echo last; env | grep ^TIDE | sed s/STATE=.*/STATE/ | sort; exit 3",
    );
    let mark = |phase: &str, text: &str| LogMark { phase: phase.to_owned(), text: text.to_owned() };
    wish.marks = vec![mark("serving", "never"), mark("loading", "Starting to load")];
    node.start(1, wish).await.unwrap();
    let report = ended(&node, &id("a-0-g1")).await;
    let InstanceState::Ended { exit: Some(Exit::Code(3)), cause: Some(cause), .. } = &report.state else {
        panic!("{report:?}")
    };
    assert_eq!(cause, "exit code 3: ValueError: no room");
    assert_eq!(report.boot.iter().map(|mark| mark.phase.as_str()).collect::<Vec<_>>(), ["loading"]);
    wait_for(&node, |what| matches!(what, Happened::Booted { phase, .. } if phase == "loading")).await;
    let log = node.log(&id("a-0-g1"), 0, 1 << 20).await.unwrap();
    assert_eq!(log.text, "Starting to load\nValueError: no room\nlast\nTIDEGATE_INSTANCE=a-0-g1\nTIDEGATE_STATE\n");
    assert_eq!((log.log_bytes, log.next), (report.log_bytes, report.log_bytes));
    assert_eq!(node.log(&id("a-0-g1"), 17, 10).await.unwrap().text, "ValueError");
    assert_eq!(code(&node.log(&id("b"), 0, 1).await.unwrap_err()), "unknown_instance");
    close(node).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_end_with_the_reason() {
    let house = House::new();
    let node = house.open().await;
    let mut wish = order("a-0-g1", "");
    wish.command.program = "no-such-engine".to_owned();
    node.start(1, wish.clone()).await.unwrap();
    let report = ended(&node, &id("a-0-g1")).await;
    let InstanceState::Ended { exit: Some(Exit::Code(127)), cause: Some(cause), .. } = report.state else {
        panic!("{report:?}")
    };
    assert!(cause.contains("engine not started: no-such-engine"), "{cause}");
    close(node).await;
    let mut house = House::new();
    house.settings.minder = vec!["no-such-minder".into()];
    let node = house.open().await;
    let error = node.start(1, wish).await.unwrap_err();
    assert_eq!(code(&error), "launch", "{error}");
    assert_eq!(node.instances().await.unwrap(), []);
    assert!(!house.instance("a-0-g1").exists(), "a start that failed leaves nothing");
    close(node).await;
}

#[tokio::test]
async fn an_engine_killed_by_somebody_says_so() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let (started, _) = alive.start(&node, order("a-0-g1", "echo ready >&3\nexec sleep 1000")).await;
    signal("-KILL", pid(&started));
    let report = ended(&node, &id("a-0-g1")).await;
    let InstanceState::Ended { exit: Some(Exit::Signal(9)), cause: Some(cause), .. } = report.state else {
        panic!("{report:?}")
    };
    assert!(cause.starts_with("killed (signal 9)"), "{cause}");
    close(node).await;
}

#[tokio::test]
async fn an_engine_that_finds_its_port_taken_gets_the_next_one() {
    let house = House::new();
    let node = house.open().await;
    // Somebody takes the port between our look and the engine's.
    let script = "import errno,os,socket,sys\n\
        port = int(sys.argv[1])\n\
        thief = socket.socket()\n\
        state = os.environ['STATE']\n\
        if not os.path.exists(state):\n    \
            open(state, 'w').write('x')\n    \
            print('OSError: [Errno 98] Address already in use', flush=True)\n    \
            sys.exit(1)\n\
        own = socket.socket(); own.bind(('127.0.0.1', port)); own.listen()\n\
        open(os.environ['ALIVE'], 'w').write('%d\\n' % port)\n\
        own.accept()\n";
    let mut alive = Alive::new(&house, "alive");
    let mut wish = order("a-0-g1", "");
    wish.command.program = "python3".to_owned();
    wish.command.args = vec!["-c".to_owned(), script.to_owned(), "{{port}}".to_owned()];
    let file = |name: &str| house.path().join(name).display().to_string();
    wish.command.env = [("STATE".to_owned(), file("state")), ("ALIVE".to_owned(), file("alive"))].into();
    // The first port of the range stops binding as soon as the engine has been given it.
    let first = free_pair(20_000);
    wish.ports = (first, first + 1);
    let started = node.start(1, wish).await.unwrap();
    assert_eq!(started.port, Some(first));
    let _thief = std::net::TcpListener::bind(("127.0.0.1", first)).unwrap();
    assert_eq!(alive.word().await, (first + 1).to_string());
    wait_for_port(&node, first + 1).await;
    kill(&node, &id("a-0-g1")).await;
    close(node).await;
}

/// Two neighbouring ports that bind, each test from a number of its own on.
fn free_pair(from: u16) -> u16 {
    let binds = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    (from..from + 2_000).step_by(2).find(|port| binds(*port) && binds(port + 1)).unwrap()
}

/// The engine was seen listening, so its report is there, or will be as soon as the minder has told of it.
async fn wait_for_port(node: &impl Node, port: u16) {
    while node.instances().await.unwrap()[0].port != Some(port) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn ports_are_booked_until_the_end_and_none_left_is_a_fault() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let first = free_pair(22_000);
    let wish = |name: &str| {
        let mut wish = order(name, "echo {{host}}:{{port}} >&3\nexec sleep 1000");
        wish.ports = (first, first);
        wish
    };
    let (_, word) = alive.start(&node, wish("a-0-g1")).await;
    assert_eq!(word, format!("127.0.0.1:{first}"));
    let error = node.start(1, wish("b-0-g1")).await.unwrap_err();
    assert!(matches!(error, NodeError::NoPort { .. }), "{error}");
    kill(&node, &id("a-0-g1")).await;
    alive.ended().await;
    let mut alive = Alive::new(&house, "alive-2");
    let (_, word) = alive.start(&node, wish("b-0-g1")).await;
    assert_eq!(word, format!("127.0.0.1:{first}"));
    kill(&node, &id("b-0-g1")).await;
    alive.ended().await;
    close(node).await;
}

#[tokio::test]
async fn a_controller_that_was_replaced_is_refused_after_a_restart_too() {
    let house = House::new();
    let node = house.open().await;
    node.start(5, order("a-0-g5", "exec sleep 1000")).await.unwrap();
    node.close(OnExit::Leave).await;
    let node = house.open().await;
    let stale = NodeError::StaleGeneration { generation: 4, highest: 5 };
    let a = id("a-0-g5");
    assert_eq!(node.start(4, order("b-0-g4", "exec sleep 1000")).await.unwrap_err(), stale);
    assert_eq!(node.stop(4, &a, LONG).await.unwrap_err(), stale);
    assert_eq!(node.prove(4, &a).await.unwrap_err(), stale);
    assert_eq!(node.forget(4, &a).await.unwrap_err(), stale);
    assert_eq!(node.release(4, 0, "why").await.unwrap_err(), stale);
    assert_eq!(node.keep(4, Vec::new()).await.unwrap_err(), stale);
    assert_eq!(node.instances().await.unwrap().len(), 1);
    assert_eq!(code(&node.forget(6, &a).await.unwrap_err()), "bad_request", "it runs");
    let running = node.prove(6, &a).await.unwrap();
    assert!(matches!(running, Proof::NotFree { ref why, .. } if why == "it still runs"), "{running:?}");
    node.stop(6, &a, Duration::ZERO).await.unwrap();
    ended(&node, &a).await;
    assert_eq!(code(&node.stop(6, &id("zz"), LONG).await.unwrap_err()), "unknown_instance");
    close(node).await;
}

#[tokio::test]
async fn a_talkative_engine_does_not_fill_the_disk_and_its_first_lines_stay() {
    use std::os::unix::fs::MetadataExt as _;
    let mut house = House::new();
    house.settings.log = tidegate_node::LogBounds { head_bytes: 64 << 10, tail_bytes: 64 << 10 };
    let node = house.open().await;
    let script = "echo first line; head -c 4194304 /dev/zero | tr '\\0' x; echo; echo last line";
    node.start(1, order("a-0-g1", script)).await.unwrap();
    let report = ended(&node, &id("a-0-g1")).await;
    assert!(report.log_bytes > 4 << 20);
    let on_disk = std::fs::metadata(house.instance("a-0-g1").join("log")).unwrap().blocks() * 512;
    assert!(on_disk <= 160 << 10, "{on_disk} bytes");
    assert!(node.log(&id("a-0-g1"), 0, 64).await.unwrap().text.starts_with("first line\n"));
    let end = node.log(&id("a-0-g1"), report.log_bytes - 10, 64).await.unwrap();
    assert_eq!((end.text.as_str(), end.next), ("last line\n", report.log_bytes));
    let middle = node.log(&id("a-0-g1"), 1 << 20, 64).await.unwrap();
    assert_eq!(middle.from, (report.log_bytes - (64 << 10)) / 4096 * 4096, "what is no longer kept is passed over");
    close(node).await;
}
