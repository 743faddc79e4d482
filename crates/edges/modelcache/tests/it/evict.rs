//! Eviction against the sets that must stay: by every small case, and by chance.

use std::collections::HashSet;

use proptest::prelude::*;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::evict::{Held, HeldFile, Hold, NoRoom, Plan, Room, Standing, plan};

fn digest(number: u8) -> Sha256Digest {
    Sha256Digest([number; 32])
}

/// A content file whose length follows from its number, as in a real cache.
fn file(number: u8) -> HeldFile {
    HeldFile { sha256: digest(number), bytes: 1 << (number % 40) }
}

fn held(number: u8, files: &[u8], standing: Standing) -> Held {
    Held { digest: digest(number), files: files.iter().map(|&number| file(number)).collect(), standing }
}

fn spare(next_use_s: Option<u64>, last_use_s: Option<u64>) -> Standing {
    Standing::Spare { next_use_s, last_use_s }
}

fn bytes(bytes: u64) -> Room {
    Room { bytes, inodes: 0 }
}

/// What a disk would have free more when these models were gone.
fn freed_by(models: &[Held], gone: &HashSet<Sha256Digest>) -> Room {
    let of = |is_gone: bool| -> HashSet<(Sha256Digest, u64)> {
        models
            .iter()
            .filter(|model| gone.contains(&model.digest) == is_gone)
            .flat_map(|model| model.files.iter().map(|file| (file.sha256, file.bytes)))
            .collect()
    };
    let stays = of(false);
    let files = of(true);
    files.difference(&stays).fold(Room::NONE, |room, (_, bytes)| room.plus(Room { bytes: *bytes, inodes: 1 }))
}

/// The spare models, the one that should stay longest first: the definition, written without the code under test.
fn by_worth(models: &[Held]) -> Vec<Sha256Digest> {
    let mut spare: Vec<_> = models
        .iter()
        .filter_map(|model| match model.standing {
            Standing::Spare { next_use_s, last_use_s } => Some((next_use_s, last_use_s, model.digest)),
            Standing::Kept(_) => None,
        })
        .collect();
    spare.sort_by(|a, b| {
        let next = a.0.unwrap_or(u64::MAX).cmp(&b.0.unwrap_or(u64::MAX));
        next.then(b.1.unwrap_or(0).cmp(&a.1.unwrap_or(0))).then(b.2.cmp(&a.2))
    });
    spare.into_iter().map(|(_, _, digest)| digest).collect()
}

/// The best of all sets, by trying every one: the first difference in worth decides.
fn best(models: &[Held], need: Room) -> Option<HashSet<Sha256Digest>> {
    let worth = by_worth(models);
    // The most worthy model is the highest bit: the least number of a set that suffices is the best.
    (0_u32..1 << worth.len()).find_map(|set| {
        let gone =
            (0..worth.len()).filter(|&at| set & (1 << (worth.len() - 1 - at)) != 0).map(|at| worth[at]).collect();
        freed_by(models, &gone).holds(need).then_some(gone)
    })
}

fn check(models: &[Held], need: Room) {
    let got = plan(models, need);
    let Some(best) = best(models, need) else {
        let error = got.unwrap_err();
        let all: HashSet<_> = by_worth(models).into_iter().collect();
        assert_eq!(error.evictable, freed_by(models, &all));
        assert!(!error.evictable.holds(need));
        assert_eq!(error.kept.len(), models.len() - all.len());
        return;
    };
    let Plan { evict, frees } = got.unwrap();
    let gone: HashSet<_> = evict.iter().copied().collect();
    assert_eq!(gone.len(), evict.len(), "each once");
    assert_eq!(gone, best, "{models:?} {need:?}");
    assert_eq!(frees, freed_by(models, &gone));
    let mut order = by_worth(models);
    order.retain(|digest| gone.contains(digest));
    order.reverse();
    assert_eq!(evict, order, "the furthest next use goes first");
}

/// Every cache of three models over three files with every standing of the first, every kind of standing of the others,
/// and every need that makes a difference.
#[test]
fn every_small_cache_gives_the_best_set_and_never_one_that_is_held() {
    let spares = [spare(None, None), spare(None, Some(5)), spare(Some(10), Some(5)), spare(Some(20), None)];
    let firsts = Hold::ALL.into_iter().map(Standing::Kept).chain(spares);
    let others: Vec<Standing> = [Standing::Kept(Hold::Serving)].into_iter().chain(spares).collect();
    let sets: Vec<Vec<u8>> = (0_u8..8).map(|set| (0..3).filter(|bit| set & (1 << bit) != 0).collect()).collect();
    let mut cases = 0_u32;
    let pairs = || others.iter().flat_map(|&second| others.iter().map(move |&third| (second, third)));
    for (first, (second, third)) in firsts.flat_map(|first| pairs().map(move |pair| (first, pair))) {
        for (which, files) in sets.iter().enumerate() {
            // The second model has every set, too; the third one file more than the first, so that all sharings of
            // three models are seen without all their products.
            for of_second in &sets {
                let of_third = [&sets[which][..], &[0]].concat();
                let models = [held(1, files, first), held(2, of_second, second), held(3, &of_third, third)];
                for need in [bytes(1), bytes(3), bytes(6), bytes(8), Room { bytes: 1, inodes: 2 }] {
                    check(&models, need);
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 9 * 5 * 5 * 8 * 8 * 5);
}

fn any_standing() -> impl Strategy<Value = Standing> {
    prop_oneof![
        2 => proptest::sample::select(&Hold::ALL[..]).prop_map(Standing::Kept),
        5 => (proptest::option::of(0_u64..6), proptest::option::of(0_u64..6)).prop_map(|(next, last)| spare(next, last)),
    ]
}

fn any_cache() -> impl Strategy<Value = Vec<Held>> {
    proptest::collection::vec((proptest::collection::vec(0_u8..12, 0..6), any_standing()), 0..9).prop_map(|models| {
        models.into_iter().zip(0_u8..).map(|((files, standing), number)| held(number, &files, standing)).collect()
    })
}

proptest! {
    #[test]
    fn any_cache_gives_the_best_set_and_never_one_that_is_held(
        models in any_cache(),
        need_bytes in 0_u64..5000,
        inodes in 0_u64..6,
    ) {
        check(&models, Room { bytes: need_bytes, inodes });
    }

    #[test]
    fn the_answer_does_not_depend_on_the_order_of_the_input(models in any_cache(), need in 1_u64..5000) {
        let mut turned = models.clone();
        turned.reverse();
        prop_assert_eq!(plan(&models, bytes(need)), plan(&turned, bytes(need)));
    }
}

#[test]
fn without_a_timetable_the_least_recently_used_goes_first() {
    let models = [
        held(1, &[3], spare(None, Some(30))),
        held(2, &[4], spare(None, Some(10))),
        held(3, &[5], spare(None, Some(20))),
        held(4, &[6], spare(None, None)),
    ];
    assert_eq!(plan(&models, bytes(64)).unwrap().evict, [digest(4)]);
    assert_eq!(plan(&models, bytes(65)).unwrap().evict, [digest(4), digest(2)]);
}

#[test]
fn a_model_used_today_goes_before_one_that_the_timetable_needs_tomorrow() {
    let models = [held(1, &[5], spare(None, Some(1_000))), held(2, &[5, 6], spare(Some(2_000), Some(1)))];
    assert_eq!(plan(&models, bytes(1)).unwrap().evict, [digest(2)], "the first shares its only file");
    let models = [held(1, &[4], spare(None, Some(1_000))), held(2, &[5], spare(Some(2_000), Some(1)))];
    assert_eq!(plan(&models, bytes(1)).unwrap().evict, [digest(1)]);
}

#[test]
fn a_small_model_is_not_removed_when_a_larger_one_has_to_go_anyway() {
    let models = [held(1, &[2], spare(None, None)), held(2, &[10], spare(Some(5), None))];
    assert_eq!(
        plan(&models, bytes(1000)).unwrap(),
        Plan { evict: vec![digest(2)], frees: Room { bytes: 1024, inodes: 1 } }
    );
}

#[test]
fn what_holds_the_room_is_named_with_its_reason_the_largest_first() {
    let models = [
        held(1, &[2, 9], Standing::Kept(Hold::Pinned)),
        held(2, &[2, 10], Standing::Kept(Hold::Serving)),
        held(3, &[3], spare(None, None)),
    ];
    let NoRoom { need, evictable, kept } = plan(&models, bytes(9)).unwrap_err();
    assert_eq!((need, evictable), (bytes(9), Room { bytes: 8, inodes: 1 }));
    assert_eq!(kept, [(digest(2), Hold::Serving, 1024), (digest(1), Hold::Pinned, 512)]);
}

#[test]
fn nothing_is_removed_for_nothing() {
    assert_eq!(plan(&[held(1, &[3], spare(None, None))], Room::NONE).unwrap(), Plan::default());
    assert_eq!(plan(&[], Room::NONE).unwrap(), Plan::default());
}
