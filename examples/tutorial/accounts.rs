use cenote::{Error, ErrorKind, Persist, Pool, Ptr, Reader, Store};
use cenote_collections::{HashMap, InlineStr};
use std::time::Duration;

type Name = InlineStr<31>;

#[derive(Persist)]
struct Bank {
    accounts: HashMap<Name, u64>,
}

/// What a transfer can end with: an error of Cenote, or one of this program.
#[derive(Debug)]
enum Refused {
    Store(Error),
    NoAccount,
    TooLittle { has: u64 },
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

fn open(pool: &Pool) -> cenote::Result<Ptr<Bank>> {
    pool.write(|tx| {
        if let Some(bank) = tx.root::<Bank>()? {
            return Ok(bank);
        }
        let accounts = HashMap::from_iter(tx, [("ada", 100), ("bob", 0)].map(name))?;
        let bank = tx.alloc(Bank { accounts })?;
        tx.set_root(bank)?;
        Ok(bank)
    })
}

fn name((name, amount): (&str, u64)) -> (Name, u64) {
    (Name::truncated(name), amount)
}

/// Moves an amount. After an error both accounts are as before.
fn transfer(
    pool: &Pool,
    bank: Ptr<Bank>,
    from: &str,
    to: &str,
    amount: u64,
) -> Result<(), Refused> {
    pool.write(|tx| {
        let accounts = tx.get(bank)?.accounts;
        let to = accounts.get_mut(tx, to)?.ok_or(Refused::NoAccount)?;
        *to += amount;
        let from = accounts.get_mut(tx, from)?.ok_or(Refused::NoAccount)?;
        *from = from.checked_sub(amount).ok_or(Refused::TooLittle { has: *from })?;
        Ok(())
    })
}

/// Prints the amounts, unless a writer has the pool for too long.
fn print(pool: &Pool, bank: Ptr<Bank>) -> cenote::Result<()> {
    let view = match pool.read_timeout(Duration::from_secs(1)) {
        Ok(view) => view,
        Err(error) if error.kind() == ErrorKind::Busy => {
            println!("busy, try again");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let accounts = view.get(bank)?.accounts;
    for name in ["ada", "bob"] {
        println!("{name}: {:?}", accounts.get(&view, name)?);
    }
    Ok(())
}

fn main() -> Result<(), Refused> {
    let pool = Store::open("tutorial")?.pool("bank")?;
    let bank = open(&pool)?;
    for (to, amount) in [("bob", 30), ("eve", 30), ("bob", 300)] {
        match transfer(&pool, bank, "ada", to, amount) {
            Err(Refused::Store(error)) => return Err(error.into()),
            Err(Refused::NoAccount) => println!("{to} has no account"),
            Err(Refused::TooLittle { has }) => println!("not {amount} to {to}: there are {has}"),
            Ok(()) => println!("{amount} to {to}"),
        }
    }
    Ok(print(&pool, bank)?)
}
