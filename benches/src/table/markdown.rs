//! A table as Markdown.

use std::fmt::{self, Write};

use super::Table;

/// Writes a table with its title as a heading.
pub(crate) fn write(out: &mut impl Write, table: &Table) -> fmt::Result {
    if !table.title.is_empty() {
        writeln!(out, "\n### {}", escaped(&table.title))?;
    }
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    writeln!(out, "\n{}", line(table.columns.iter().map(|column| escaped(column)).collect()))?;
    let rule = |index: usize| if index == 0 { "---" } else { "---:" };
    writeln!(out, "{}", line((0..table.columns.len()).map(|i| rule(i).to_owned()).collect()))?;
    let reasons = table.reasons();
    for row in &table.rows {
        writeln!(out, "{}", line(row.iter().map(|cell| escaped(&cell.said(&reasons))).collect()))?;
    }
    for line in table.below() {
        writeln!(out, "\n{}", escaped(&line))?;
    }
    Ok(())
}

/// Text that Markdown takes as it is.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // A name such as rust/tracing_on has no markup in it: within a word, `_` is itself.
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text() {
        assert_eq!(escaped("<img src=x>|[a](b)"), "&lt;img src=x&gt;\\|\\[a\\](b)");
        assert_eq!(escaped("rust/tracing_on_begin/10"), "rust/tracing_on_begin/10");
    }
}
