use std::sync::mpsc;
use std::time::Duration;

use super::super::description_of_a_test as described;
use super::*;

/// Returns ids that all belong to one shard.
fn ids() -> impl Iterator<Item = u64> {
    (1..).filter(|id| shard_of(*id) == 5)
}

fn add(table: &SpanTable, id: u64) {
    assert!(table.insert(described(id), |_| Some(0)).is_none());
}

fn all(table: &SpanTable) -> (Vec<Record>, Vec<usize>) {
    let (mut records, mut addresses) = Default::default();
    table.copy(&mut records, &mut addresses);
    records.sort_by_key(|record| record.description.id);
    (records, addresses)
}

fn room(table: &SpanTable) -> usize {
    table.shards().iter().map(|shard| shard.0.lock().unwrap().room()).sum()
}

/// Tests that ids are distributed over the shards: ids that differ only in the high bits, which hold a thread's id or a
/// generation, and ids that are small numbers.
#[test]
fn ids_are_spread_over_the_shards() {
    for shift in [0, 5, 20, 38, 51] {
        let mut spans = [0; SHARDS];
        (0..1024_u64).for_each(|id| spans[shard_of((id << shift) + 1)] += 1);
        assert!(spans.iter().all(|spans| (8..128).contains(spans)), "{shift}: {spans:?}");
    }
}

#[test]
fn slots_are_used_again() {
    let table = SpanTable::new(2);
    let mut has_room = None;
    let ids: Vec<u64> = ids().take(if cfg!(miri) { 40 } else { 100 }).collect();
    for round in 0..if cfg!(miri) { 2 } else { 3 } {
        for (at, id) in ids.iter().enumerate() {
            let again = table.insert(described(*id), |room| {
                room.fill(at + 1);
                Some(at % 3)
            });
            assert!(again.is_none());
        }
        assert_eq!(*has_room.get_or_insert(room(&table)), room(&table));
        let (records, addresses) = all(&table);
        assert_eq!(records.len(), ids.len());
        for (at, record) in records.iter().enumerate() {
            assert_eq!(record.description.id, ids[at]);
            assert_eq!(addresses[record.addresses.clone()], [at + 1, at + 1][..at % 3]);
        }
        // Removes the ids in another order each time, and some ids twice.
        for id in ids.iter().rev().step_by(round + 1).chain(&ids) {
            table.remove(*id);
        }
        assert_eq!(all(&table).0.len(), 0);
    }
}

#[test]
fn an_id_that_is_given_twice_is_there_once() {
    let table = SpanTable::new(0);
    for _ in 0..64 {
        add(&table, 7);
    }
    assert_eq!(all(&table).0.len(), 1);
    assert!(room(&table) <= 4, "one beside the one it replaces");
    table.remove(7);
    assert_eq!(all(&table).0.len(), 0);
}

#[test]
fn nothing_of_a_closed_span_is_left_to_the_next() {
    let table = SpanTable::new(4);
    let [first, second] = [0, 1].map(|at| ids().nth(at).expect("there are more"));
    table.insert(described(first), |room| {
        room.fill(1);
        Some(4)
    });
    table.set_fields(first, None, "a = 1".into());
    table.enter(first);
    table.enter(first);
    assert_eq!(all(&table).0[0].threads.len(), 1);
    table.remove(first);
    // A walk that fails leaves the span out of the table.
    let second_made = table.insert(described(second), |_| None).expect("it is returned");
    assert_eq!((second_made.id, all(&table).0.len()), (second, 0));
    assert!(table.insert(second_made, |_| Some(0)).is_none());
    let (records, addresses) = all(&table);
    assert_eq!((records.len(), addresses.len()), (1, 0));
    assert_eq!((records[0].description.id, records[0].threads.len()), (second, 0));
    assert_eq!(table.fields(second), None);
    // A span that is not in the table has no fields.
    table.enter(first);
    table.exit(first);
    assert!(table.set_fields(first, None, "b = 2".into()), "it is not tried again");
    assert_eq!((table.fields(first), all(&table).0.len()), (None, 1));
}

#[test]
fn fields_are_replaced_as_they_were_seen() {
    let table = SpanTable::new(0);
    add(&table, 1);
    let [one, other]: [Arc<str>; 2] = ["a = 1".into(), "a = 1".into()];
    assert!(!table.set_fields(1, Some(&one), Arc::clone(&one)));
    assert!(table.set_fields(1, None, Arc::clone(&one)));
    assert!(!table.set_fields(1, None, Arc::clone(&other)));
    assert!(!table.set_fields(1, Some(&other), Arc::clone(&other)), "the same text, but another");
    assert!(table.fields(1).is_some_and(|now| Arc::ptr_eq(&now, &one)));
    assert!(table.set_fields(1, Some(&one), other));
}

#[test]
fn threads_leave_as_often_as_they_entered() {
    let table = SpanTable::new(0);
    add(&table, 1);
    let inside = || all(&table).0[0].threads.clone();
    let here = thread::this();
    table.exit(1);
    assert_eq!(inside().len(), 0);
    for times in 1..4 {
        table.enter(1);
        assert_eq!(inside(), [Arc::clone(&here)], "{times}");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            table.enter(1);
            assert_eq!(inside().len(), 2);
            table.exit(1);
            table.exit(1);
            assert_eq!(inside(), [Arc::clone(&here)], "the other's are its own");
        });
    });
    for left in (0..3).rev() {
        table.exit(1);
        assert_eq!(inside().len(), usize::from(left > 0));
    }
}

/// Tests calls of the table while the same thread is already using the table, as a signal handler or an allocator that
/// traces may do. Such calls have no effect.
#[test]
fn who_comes_again_goes_away_again() {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let table = SpanTable::new(3);
        let [first, second] = [0, 1].map(|at| ids().nth(at).expect("there are more"));
        let found = table.insert(described(first), |room| {
            let again = table.insert(described(second), |_| panic!("it walks"));
            assert!(again.is_none(), "nobody is to try again");
            table.enter(first);
            table.exit(first);
            table.remove(first);
            assert!(table.fields(first).is_none());
            assert!(table.set_fields(first, None, "a = 1".into()), "it would be tried again");
            assert!(all(&table).0.is_empty());
            room[0] = 7;
            Some(1)
        });
        assert!(found.is_none());
        let (records, addresses) = all(&table);
        assert_eq!((records.len(), records[0].description.id, &addresses[..]), (1, first, &[7][..]));
        assert_eq!((records[0].threads.len(), &records[0].description.fields), (0, &None));
        // After that the thread can use the table again.
        table.remove(first);
        send.send(all(&table).0.len()).expect("somebody waits");
    });
    assert_eq!(receive.recv_timeout(Duration::from_secs(30)), Ok(0), "it waits for itself, or failed");
}
