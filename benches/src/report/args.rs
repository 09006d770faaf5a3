//! The command line of `report`.

use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) const HELP: &str = "\
Makes one report of what the benches have measured: report.md, report.html and report.json.

cargo run -p atrace-benches --bin report -- [--save NAME] [--compare NAME [--max-regression 5%]]

  --save NAME           keep these results under this name, in overhead/saved/
  --compare NAME        compare them with those saved under this name; fail where one has become worse
  --max-regression P    worse by how much, in percent (5%)
  --out DIR             where to write the report (target/report)
  --measured DIR        where the rows are (target/overhead, or $ATRACE_OVERHEAD_DIR)
  --criterion DIR       where Criterion's data is (target/criterion, or $CRITERION_HOME)
  --help                say this

It reads what is there, and says what is missing or can't be read.

Exit status: 0; 1 something has become worse, is missing or could not be judged; 2 usage, or a file that can't be
read or written.
";

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Args {
    pub(crate) save: Option<String>,
    pub(crate) compare: Option<String>,
    /// As a part: 0.05 for 5 %.
    pub(crate) max_regression: f64,
    pub(crate) out: Option<PathBuf>,
    pub(crate) measured: Option<PathBuf>,
    pub(crate) criterion: Option<PathBuf>,
    pub(crate) help: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            save: None,
            compare: None,
            max_regression: 0.05,
            out: None,
            measured: None,
            criterion: None,
            help: false,
        }
    }
}

impl Args {
    /// Reads a command line without the program's name.
    pub(crate) fn parse<S: Into<OsString>>(args: impl IntoIterator<Item = S>) -> Result<Self, String> {
        let usage = |what: String| format!("{what}; --help says what there is");
        let mut parsed = Self::default();
        let mut limited = false;
        let mut args = args.into_iter().map(Into::into);
        while let Some(arg) = args.next() {
            let text = arg.to_str().ok_or_else(|| usage(format!("{} is not UTF-8", arg.display())))?;
            let (flag, inline) = match text.split_once('=') {
                Some((flag, value)) => (flag, Some(OsString::from(value))),
                None => (text, None),
            };
            let has_inline = inline.is_some();
            let mut value = || {
                inline.clone().or_else(|| args.next()).ok_or_else(|| usage(format!("{flag} needs a value")))
            };
            match flag {
                "--save" => parsed.save = Some(name(flag, value()?).map_err(usage)?),
                "--compare" => parsed.compare = Some(name(flag, value()?).map_err(usage)?),
                "--max-regression" => {
                    parsed.max_regression = percent(value()?).map_err(usage)?;
                    limited = true;
                }
                "--out" => parsed.out = Some(value()?.into()),
                "--measured" => parsed.measured = Some(value()?.into()),
                "--criterion" => parsed.criterion = Some(value()?.into()),
                "--help" | "-h" if !has_inline => parsed.help = true,
                _ => return Err(usage(format!("{text} is not understood"))),
            }
        }
        if limited && parsed.compare.is_none() {
            return Err(usage("--max-regression is of a comparison: add --compare NAME".to_owned()));
        }
        Ok(parsed)
    }
}

/// Reads the name of saved results, which becomes that of a directory.
fn name(flag: &str, value: OsString) -> Result<String, String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match value.into_string() {
        Ok(name)
            if !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(safe) =>
        {
            Ok(name)
        }
        Ok(name) => {
            Err(format!("{flag} {name:?}: a name is made of letters, digits, '-', '_' and inner '.'"))
        }
        Err(name) => Err(format!("{flag} {}: not UTF-8", name.display())),
    }
}

fn percent(value: OsString) -> Result<f64, String> {
    let text = value.to_string_lossy();
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    let number = number.filter(|p| p.is_finite() && (0.0..=1000.0).contains(p));
    number.map(|p| p / 100.0).ok_or_else(|| format!("--max-regression {text}: a percentage, such as 5%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace())
    }

    #[test]
    fn command_lines() {
        assert_eq!(parse("").unwrap(), Args::default());
        let args = parse("--save new --compare=old-1.2 --max-regression 2.5% --out o").unwrap();
        assert_eq!((args.save.as_deref(), args.compare.as_deref()), (Some("new"), Some("old-1.2")));
        assert_eq!((args.max_regression, args.out), (0.025, Some("o".into())));
        assert_eq!(parse("--compare a --max-regression 10").unwrap().max_regression, 0.1);
        assert!(parse("-h").unwrap().help);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("--save", "--save needs a value"),
            ("--save ../x", "\"../x\": a name is made of"),
            ("--save .x", "\".x\": a name is made of"),
            ("--save=", "\"\": a name is made of"),
            ("--compare a --max-regression -1", "a percentage"),
            ("--compare a --max-regression NaN", "a percentage"),
            ("--max-regression 5%", "add --compare NAME"),
            ("begin", "begin is not understood"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.contains(part) && e.ends_with("--help says what there is"), "{line}: {e}");
        }
    }
}
