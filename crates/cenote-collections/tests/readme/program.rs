use cenote::{Persist, Ptr, Reader, Store};

#[derive(Persist)]
struct Node { run: u64, next: Option<Ptr<Node>> }

fn push() -> cenote::Result<u64> {
    let pool = Store::open("my-store")?.pool("runs")?;
    pool.write(|tx| {
        let next = tx.root::<Node>()?;
        let run = match next {
            Some(last) => tx.get(last)?.run + 1,
            None => 1,
        };
        let node = tx.alloc(Node { run, next })?;
        tx.set_root(node)?;
        Ok(run)
    })
}

fn main() {
    match push() {
        Ok(run) => println!("run {run}"),
        Err(error) => { eprintln!("{error}"); std::process::exit(1) }
    }
}
