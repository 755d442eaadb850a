use cenote::{Persist, Pool, Ptr, Reader, Store};

#[derive(Persist)]
struct Person {
    born: u32,
    mood: Mood,
    behind: Option<Ptr<Person>>,
}

#[derive(Persist, Clone, Copy)]
#[repr(u8)]
enum Mood {
    Calm,
    Waiting { minutes: u32 },
}

/// Puts a person before all others of the line.
fn join(pool: &Pool, born: u32, mood: Mood) -> cenote::Result<()> {
    pool.write(|tx| {
        let behind = tx.root::<Person>()?;
        let person = tx.alloc(Person { born, mood, behind })?;
        tx.set_root(person)
    })
}

/// Frees the person who is before all others.
fn leave(pool: &Pool) -> cenote::Result<()> {
    pool.write(|tx| {
        let Some(first) = tx.root::<Person>()? else { return Ok(()) };
        let behind = tx.get(first)?.behind;
        tx.set_root_at(0, behind)?;
        tx.free(first)
    })
}

fn print(pool: &Pool) -> cenote::Result<()> {
    let view = pool.read()?;
    let mut next = view.root::<Person>()?;
    while let Some(person) = next {
        let person = view.get(person)?;
        match person.mood {
            Mood::Calm => println!("born {}", person.born),
            Mood::Waiting { minutes } => println!("born {}, {minutes} minutes", person.born),
        }
        next = person.behind;
    }
    Ok(())
}

fn main() -> Result<(), String> {
    let run = || {
        let pool = Store::open("tutorial")?.pool("line")?;
        join(&pool, 1815, Mood::Calm)?;
        join(&pool, 1906, Mood::Waiting { minutes: 7 })?;
        join(&pool, 1954, Mood::Calm)?;
        leave(&pool)?;
        print(&pool)
    };
    run().map_err(|error| error.to_string())
}
